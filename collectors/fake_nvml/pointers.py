"""How a fake function reads and writes the C arguments that ``pynvml`` hands it.

``byref(x)`` arrives with its object as ``_obj``; handles are pointers whose address is all
that counts; numbers come plain or as ctypes.
"""

from __future__ import annotations

from ctypes import POINTER, c_void_p, cast
from typing import Any

# ctypes has no public name for what all pointer types have in common.
_Pointer: Any = POINTER(c_void_p).__mro__[1]

__all__ = ["address_of", "fill", "number", "pointer", "put", "put_handle", "put_text", "target"]


def target(argument: Any) -> Any:
    """Return the object that an argument refers to, or the argument itself (an array)."""
    return getattr(argument, "_obj", argument)


def number(argument: Any) -> int:
    """Return the integer of an argument."""
    return int(getattr(argument, "value", argument))


def address_of(handle: Any) -> int | None:
    """Return the address in a handle, None for a null pointer or for no handle at all."""
    return cast(handle, c_void_p).value if isinstance(handle, _Pointer) else None


def put(reference: Any, value: int) -> None:
    """Write an integer to where a reference leads."""
    target(reference).value = value


def put_text(buffer: Any, text: str) -> None:
    """Write a string into a buffer."""
    buffer.value = text.encode()


def put_handle(reference: Any, address: int) -> None:
    """Write a handle to where a reference leads."""
    c_void_p.from_buffer(target(reference)).value = address


def pointer(kind: Any, address: int) -> Any:
    """Return a handle of a pointer type."""
    return cast(c_void_p(address), kind)


def fill(struct: Any, **values: Any) -> None:
    """Set fields of a structure that it has; of a nested one with a dictionary.

    A field that is a pointer takes an address.
    """
    kinds = dict(struct._fields_)
    for name, value in values.items():
        if isinstance(value, dict):
            fill(getattr(struct, name), **value)
        elif name in kinds:
            handle = issubclass(kinds[name], _Pointer)
            setattr(struct, name, pointer(kinds[name], value) if handle else value)
