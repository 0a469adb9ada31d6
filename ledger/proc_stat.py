"""The kernel's line about a process, ``/proc/PID/stat``."""

from __future__ import annotations

__all__ = ["split_stat"]


def split_stat(text: str) -> tuple[str, list[str]]:
    """Return the process's name and what follows it: its state first, then its parent.

    The name, in brackets, may have anything in it, also brackets: it ends at the last one.
    """
    before, _, rest = text.rpartition(")")
    return before.partition("(")[2], rest.split()
