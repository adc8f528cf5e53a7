"""One HTML file about a study, that a person can read anywhere and that fetches nothing."""
