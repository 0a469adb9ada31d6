"""Which gpuledger this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed

__all__ = ["version"]


@cache
def version() -> str:
    """Return the number of the distribution; ``source`` where it runs without being installed."""
    try:
        return _installed("gpuledger")
    except PackageNotFoundError:
        return "source"
