"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# No test is timed: a busy machine is slow, not wrong.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
