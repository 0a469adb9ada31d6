"""The records that count, as the database sees them: files of an archive, without void ones.

A record is void as `ledger.core.fold` has it. Where every partition is as one undisturbed
writer after another leaves it, which a few sums tell, no record is; only else each is looked
at in turn.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledger.archive.folder import list_partition, partitions_of
from ledger.log.port import LogDamaged
from schemas.topics import full_name

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

__all__ = ["PLACE_BITS", "Attached", "attach", "files_of"]

#: A place in the log as one number: the partition above so many bits, the offset below.
PLACE_BITS = 40

_INPUTS = ("requests", "observations")
_THREADS = 2


@dataclass(frozen=True, slots=True)
class Attached:
    """What was found of the records: how many are void, and in words, where numbers are left out.

    A number that is left out is a decision that is lost: nothing after it counts.
    """

    void: int
    gaps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Writer:
    """What one claim's decisions look like: first and last place, and seq's distance to it."""

    token: str
    first: int
    last: int
    count: int
    least: int
    most: int


def files_of(folder: Path, prefix: str) -> list[list[Path]]:
    """Return the files of each partition of the events; raise `LogDamaged` for a hole."""
    topic = full_name(prefix, "events")
    found = []
    for number in range(partitions_of(folder, topic)):
        listing = list_partition(folder, topic, number)
        holes = listing.holes or ([(0, listing.begin)] if listing.begin else [])
        for first, following in holes:
            raise LogDamaged(
                f"{topic}/{number}: no file has the offsets {first} to {following - 1}"
            )
        found.append([one.path for one in listing.files])
    return found


def attach(db: duckdb.DuckDBPyConnection, partitions: list[list[Path]]) -> Attached:
    """Make the views ``raw`` (all records) and ``src`` (those that count).

    ``known`` has, by partition, until when everything is known, and what there is.
    """
    parts = [
        f"SELECT {number} AS p, * FROM read_parquet([{', '.join(map(_quoted, files))}])"  # noqa: S608
        for number, files in enumerate(partitions)
        if files
    ]
    if not parts:
        raise LogDamaged("there is no record in the archive")
    db.execute(f"CREATE VIEW raw AS {' UNION ALL '.join(parts)}")
    db.execute("CREATE TYPE cell AS ENUM (SELECT DISTINCT cell FROM raw WHERE cell IS NOT NULL)")
    void, gaps = _voids(db, partitions)
    db.execute("CREATE TABLE void (k BIGINT)")
    if void:
        db.executemany("INSERT INTO void VALUES (?)", [(one,) for one in void])
    counts = "AND k NOT IN (FROM void)" if void else ""
    db.execute(
        f"""CREATE VIEW src AS SELECT * FROM (
            SELECT p, (CAST(p AS BIGINT) << {PLACE_BITS}) + "offset" AS k, decided_us AS t,
                   p * 32768 + enum_code(CAST(cell AS cell)) AS c,
                   * EXCLUDE (p, "offset", cell, key, value, headers)
            FROM raw WHERE kind = 'decision') WHERE true {counts}"""  # noqa: S608 - of this module
    )
    db.execute(
        "CREATE TABLE known AS SELECT p, max(t) AS known_us, count(*) AS records,"
        " CAST(sum(events) AS BIGINT) AS events FROM src GROUP BY p"
    )
    return Attached(len(void), tuple(gaps))


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _voids(
    db: duckdb.DuckDBPyConnection, partitions: list[list[Path]]
) -> tuple[list[int], list[str]]:
    """Return the places of void records, and where a number is first left out, by partition."""
    if _undisturbed(db, partitions):
        return [], []
    found: list[int] = []
    gaps: list[str] = []
    token, seq, sources, at, told = "", 0, dict[str, int](), -1, False
    rows = db.execute(
        'SELECT p, "offset", kind, token, seq, source_topic, source_offset FROM raw'
        ' ORDER BY p, "offset"'
    )
    while chunk := rows.fetchmany(100_000):
        for p, offset, kind, its, number, topic, source in chunk:
            if p != at:
                token, seq, sources, at, told = "", 0, {}, p, False
            if kind == "claim":
                token = its
            elif kind != "decision":
                raise LogDamaged(f"events/{p}@{offset} is neither claim nor decision, but {kind}")
            elif its != token or number != seq + 1 or source <= sources.get(topic, -1):
                found.append((p << PLACE_BITS) + offset)
                if its == token and number > seq + 1 and not told:
                    # All that follow it have numbers that are too high, too.
                    told = True
                    gaps.append(f"events/{p}@{offset} has number {number}, {seq + 1} is missing")
            else:
                seq, sources[topic] = number, source
    return found, gaps


def _undisturbed(db: duckdb.DuckDBPyConnection, partitions: list[list[Path]]) -> bool:
    claims = db.execute(
        'SELECT p, "offset", token FROM raw WHERE kind = \'claim\' ORDER BY p, "offset"'
    ).fetchall()
    ends = dict(db.execute('SELECT p, max("offset") + 1 FROM raw GROUP BY p').fetchall())
    writers = {
        (p, token): _Writer(token, *rest)
        for p, token, *rest in db.execute(
            'SELECT p, token, min("offset"), max("offset"), count(*),'
            ' min("offset" - seq), max("offset" - seq)'
            " FROM raw WHERE kind = 'decision' GROUP BY p, token"
        ).fetchall()
    }
    for at, (p, offset, token) in enumerate(claims):
        after = claims[at + 1] if at + 1 < len(claims) and claims[at + 1][0] == p else None
        end = ends[p] if after is None else after[1]
        before = sum(1 for one in claims[:at] if one[0] == p)
        found = writers.pop((p, token), None)
        if found is None and end == offset + 1:
            continue
        wanted = _Writer(token, offset + 1, end - 1, end - 1 - offset, before, before)
        if found != wanted:
            return False
    if writers:
        return False
    return not any(_backwards(files) for files in partitions)


def _backwards(files: list[Path]) -> bool:
    """Say whether a decision answers an input that is not newer than the last of its topic."""
    newest = dict.fromkeys(_INPUTS, -1)
    with ThreadPoolExecutor(_THREADS) as readers:
        for spans in readers.map(_answered, files):
            for topic, first, last in spans:
                if first <= newest[topic] or last is None:
                    return True
                newest[topic] = last
    return False


def _answered(path: Path) -> list[tuple[str, int, int | None]]:
    """Return which inputs a file's decisions answer: topic, first and last, in its order.

    The last is None where one is not newer than the one before it.
    """
    found: list[tuple[str, int, int | None]] = []
    # The topics as numbers: to compare texts would take most of the time.
    with pq.ParquetFile(path, read_dictionary=["source_topic"]) as parquet:
        for batch in parquet.iter_batches(65_536, columns=["source_topic", "source_offset"]):
            topics, offsets = batch.columns
            for code, topic in enumerate(topics.dictionary.to_pylist()):
                mine = offsets.filter(pc.equal(topics.indices, code))
                if topic in _INPUTS and len(mine):
                    rising = pc.all(pc.less(mine[:-1], mine[1:])).as_py()
                    found.append((topic, mine[0].as_py(), mine[-1].as_py() if rising else None))
    return found
