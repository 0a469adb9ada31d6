"""How hard Hypothesis tries: ``HYPOTHESIS_PROFILE=thorough`` or, by default, ``quick``.

``quick`` draws the same examples each time, so that a change is judged by what it changes;
``thorough`` is for finding what nobody has drawn yet.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline in any profile: how long one example takes says more about the machine and
# its other work than about the code. Time has its own benches.
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=2000,
    stateful_step_count=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
