"""What a model has against a record, as a message needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["first_fault", "misspelt"]

#: Longest name of a field that a message repeats, in characters.
_MAX_NAME = 64


def first_fault(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return where the first fault is, outermost first, and what it is.

    Nothing of the record itself is in it but the names of its fields.
    """
    one = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return one["loc"], one["msg"]


def misspelt(error: ValidationError) -> str:
    """Say which unknown field stands beside a missing one that is the first fault, or nothing.

    One that is misspelt is both. Begins with a semicolon, to go behind the first fault.
    """
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    if faults[0]["type"] != "missing":
        return ""
    beside = faults[0]["loc"][:-1]
    names = [
        str(one["loc"][-1])
        for one in faults
        if one["type"] == "extra_forbidden" and one["loc"][:-1] == beside
    ]
    return f"; there is no field {names[0][:_MAX_NAME]!a}: is it misspelt?" if names else ""
