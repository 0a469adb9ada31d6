"""The committed JSON Schemas say what the models say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from schemas import export
from schemas.catalogue import TYPES, adapter

if TYPE_CHECKING:
    from pathlib import Path

SUBMIT = ("request.submit", 1)
REQUEST: dict[str, Any] = {
    "tenant": "vision",
    "queue": "train",
    "task": {"id": "run-42"},
    "ask": {"mode": "mig", "profile": "2g.20gb", "count": 1},
}


def test_no_drift() -> None:
    """`make schemas` would change nothing."""
    assert [] == export.drift(), "run `make schemas` and commit schemas/json"


@pytest.mark.parametrize(("name", "version"), sorted(TYPES))
def test_every_schema_is_draft_2020_12(name: str, version: int) -> None:
    """Each schema is valid itself, named by its URN, and closed to unknown fields."""
    schema = export.schema_of(name, version)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert "https://json-schema.org/draft/2020-12/schema" == schema["$schema"]
    assert f"urn:gpuledger:schema:{name}:{version}" == schema["$id"]
    assert schema["description"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"priority": 7}, True),
        ({"priority": "7"}, False),
        ({"tenant": None}, False),
        ({"surprise": 1}, False),
        ({"ask": {"mode": "mig", "count": 1}}, False),
        ({"ask": {"mode": "remote"}}, False),
        ({"ask": {"mode": "whole", "labels": {"zone": "a"}}}, True),
        ({"ask": {"mode": "whole", "labels": {"no name": "a"}}}, False),
    ],
)
def test_schema_and_model_agree(changes: dict[str, object], valid: bool) -> None:
    """What the schema lets through is what the model lets through."""
    record = json.dumps(REQUEST | changes)

    by_schema = jsonschema.Draft202012Validator(export.schema_of(*SUBMIT)).is_valid(
        json.loads(record)
    )
    try:
        adapter(*SUBMIT).validate_json(record)
        by_model = True
    except ValueError:
        by_model = False

    assert (valid, valid) == (by_schema, by_model)


def test_drift_is_told_file_by_file(tmp_path: Path) -> None:
    """A missing, a changed and a left-over file are each named."""
    export._write(tmp_path)
    assert [] == export.drift(tmp_path)

    (tmp_path / "tick.v1.json").unlink()
    (tmp_path / "order.v1.json").write_text("{}\n", encoding="utf-8")
    (tmp_path / "gone.v1.json").write_text("{}\n", encoding="utf-8")

    assert [
        "gone.v1.json: no such type in the catalogue",
        "order.v1.json: differs from the model",
        "tick.v1.json: missing",
    ] == export.drift(tmp_path)
