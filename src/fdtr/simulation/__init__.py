"""Patients with a known truth: the built-in cohort."""
