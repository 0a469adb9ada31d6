"""How a fake function reads and writes the C arguments that ``pynvml`` hands it.

``byref(x)`` arrives with its object as ``_obj``; handles are pointers whose address is all
that counts; numbers come plain or as ctypes.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_void_p
from functools import cache
from typing import Any

# ctypes has no public name for what all pointer types have in common.
_Pointer: Any = POINTER(c_void_p).__mro__[1]

__all__ = ["address_of", "fill", "get_field", "number", "pointer", "put", "put_handle"]
__all__ += ["put_text", "set_field", "target"]

#: Read and write a number of a structure as C does: ``pynvml``'s own way looks for texts.
get_field, set_field = Structure.__getattribute__, Structure.__setattr__


def target(argument: Any) -> Any:
    """Return the object that an argument refers to, or the argument itself (an array)."""
    return getattr(argument, "_obj", argument)


def number(argument: Any) -> int:
    """Return the integer of an argument."""
    return int(getattr(argument, "value", argument))


def address_of(handle: Any) -> int | None:
    """Return the address in a handle, None for a null pointer or for no handle at all."""
    return c_void_p.from_buffer(handle).value if isinstance(handle, _Pointer) else None


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
    return kind.from_buffer_copy(c_void_p(address))


def fill(struct: Any, **values: Any) -> None:
    """Set fields of a structure that it has; of a nested one with a dictionary.

    A field that is a pointer takes an address.
    """
    kinds = _kinds(struct.__class__)
    for name, value in values.items():
        if isinstance(value, dict):
            fill(get_field(struct, name), **value)
        elif name in kinds:
            kind = kinds[name]
            set_field(struct, name, value if kind is None else pointer(kind, value))


@cache
def _kinds(struct: Any) -> dict[str, Any]:
    """Return the fields of a structure: the type of one that is a pointer, None of others."""
    return {
        name: kind if issubclass(kind, _Pointer) else None for name, kind, *_ in struct._fields_
    }
