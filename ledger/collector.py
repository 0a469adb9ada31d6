"""How often Python looks for garbage: a setting for processes that hold a large state.

The state is millions of small objects that live long and hold no cycles, so
reference counts free what is dropped. Looking for cycles among them as often as
Python does by itself took about a tenth of a replay's time.
"""

from __future__ import annotations

import gc

__all__ = ["relax"]

_YOUNG = 200_000
_MIDDLE = 50
_OLD = 100


def relax() -> None:
    """Look for cycles rarely. For a process's entry point, never for a library call."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
