"""What all tests share: how hard hypothesis tries.

`fast` is the same in every run, so a failure is never a matter of luck. `thorough` looks for new
failures: HYPOTHESIS_PROFILE=thorough make test
"""

import os

from hypothesis import HealthCheck, settings

# No deadline: a busy machine is not a failure.
settings.register_profile("fast", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "thorough",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
