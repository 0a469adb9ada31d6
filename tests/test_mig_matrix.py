"""Every step of every change of partitions, crashed and refused: both sides agree, as written."""

from __future__ import annotations

import pytest

from tests.mig_matrix import PATH, SECTIONS

ROWS = [line for line in PATH.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_the_table_says_what_happens(name: str) -> None:
    """Each run of a change ends with both sides agreed, and as the document has it."""
    made = SECTIONS[name]()

    assert made
    assert [] == [row for row in made if row not in ROWS], "run `python -m tests.mig_matrix`"


def test_the_table_has_no_other_rows() -> None:
    """A change that is tried no more is in the document no more; the total is the rows'."""
    text = PATH.read_text(encoding="utf-8")
    table = text.partition("<!-- runs: begin -->")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    names = {row[0].removeprefix("| ") for row in rows}
    known = {name for name in SECTIONS if not name.startswith("places of ")}
    boards = [name.removeprefix("places of ") for name in SECTIONS if name not in known]
    known |= {f"{verb}, every place of {one}" for one in boards for verb in ("create", "destroy")}

    assert known == names
    assert f"{sum(int(row[2]) for row in rows)} runs, and at the end" in table
