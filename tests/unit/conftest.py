"""Hypothesis: few examples on every run, many with HYPOTHESIS_PROFILE=thorough."""

import os

from hypothesis import HealthCheck, settings

_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=_slow)
settings.register_profile("thorough", max_examples=3000, deadline=None, suppress_health_check=_slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
