"""What a model has against a record, as a message needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["first_fault"]


def first_fault(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return where the first fault is, outermost first, and what it is.

    Nothing of the record itself is in it but the names of its fields.
    """
    one = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return one["loc"], one["msg"]
