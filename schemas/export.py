"""Write the JSON Schemas of all catalogued record types: ``python -m schemas.export``.

One file for each type and version, Draft 2020-12, so that a producer in any language can
check a record before sending it. The files are committed; with ``--check`` nothing is
written and the exit status is 1 if they differ from what the models say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from schemas.catalogue import TYPES, wire_type

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DIRECTORY", "drift", "files", "main", "schema_of", "urn"]

#: Where the files are kept, beside this module.
DIRECTORY = Path(__file__).parent / "json"


def urn(name: str, version: int) -> str:
    """Return the ``$id`` of a type's schema, which is the event's ``dataschema`` too."""
    return f"urn:gpuledger:schema:{name}:{version}"


def schema_of(name: str, version: int) -> dict[str, Any]:
    """Return the JSON Schema of a catalogued type; raise KeyError for others.

    It describes what a reader accepts: fields with a default may be left out.
    """
    spec = TYPES[name, version]
    schema = spec.model.model_json_schema(mode="validation")
    _close(schema)
    schema["$schema"] = GenerateJsonSchema.schema_dialect
    schema["$id"] = urn(name, version)
    schema["x-gpuledger-topic"] = spec.topic
    schema["x-gpuledger-type"] = wire_type(name, version)
    return schema


def files() -> dict[str, str]:
    """Return the text of every schema file by its name, in the order of the names."""
    return {
        f"{name}.v{version}.json": _text(schema_of(name, version))
        for name, version in sorted(TYPES)
    }


def drift(directory: Path = DIRECTORY) -> list[str]:
    """Return one line for each file that is missing, different or left over."""
    wanted = files()
    kept = {path.name for path in directory.glob("*.json")}
    missing = [f"{name}: missing" for name in wanted if name not in kept]
    different = [
        f"{name}: differs from the model"
        for name, text in wanted.items()
        if name in kept and (directory / name).read_text(encoding="utf-8") != text
    ]
    left_over = [f"{name}: no such type in the catalogue" for name in kept - wanted.keys()]
    return sorted(missing + different + left_over)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files; return the exit status (0, or 1 for drift)."""
    parser = argparse.ArgumentParser(prog="python -m schemas.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if files differ")
    check: bool = parser.parse_args(arguments).check
    found = drift()
    if check:
        sys.stderr.writelines(f"{line}\n" for line in found)
        return 1 if found else 0
    _write(DIRECTORY)
    sys.stderr.write(f"{len(TYPES)} schemas in {DIRECTORY.name}/, {len(found)} of them changed\n")
    return 0


def _write(directory: Path) -> None:
    """Make the directory hold exactly the wanted files."""
    directory.mkdir(exist_ok=True)
    wanted = files()
    for path in directory.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text, encoding="utf-8")


def _close(schema: object) -> None:
    """Forbid, everywhere below, the members whose names match no pattern.

    The models refuse them; pydantic writes the pattern and leaves the rest open.
    """
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    elif isinstance(schema, dict):
        if "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
        for item in schema.values():
            _close(item)


def _text(schema: dict[str, Any]) -> str:
    """Return the schema as it stands in its file: sorted keys, one newline at the end."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
