"""Files that people write for the collectors: TOML, or the same as JSON."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from schemas.faults import first_fault

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BadFile", "read_model"]

M = TypeVar("M", bound=BaseModel)


class BadFile(ValueError):
    """A file cannot be read or is not what it should be; says which, where and why."""


def read_model(path: Path, kind: type[M]) -> M:
    """Read ``path`` as a ``kind``: JSON when its name ends in .json, else TOML.

    Raise `BadFile` with the first thing that is wrong.
    """
    try:
        data = path.read_bytes()
        # Through JSON either way: the models are strict, and only there is a list a tuple.
        text = data if path.suffix == ".json" else orjson.dumps(tomllib.loads(data.decode()))
        return kind.model_validate_json(text)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, orjson.JSONEncodeError) as error:
        raise BadFile(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        place, message = first_fault(error)
        where = ".".join(map(str, place)) or "the file"
        raise BadFile(f"{path}: {where}: {message}") from error
