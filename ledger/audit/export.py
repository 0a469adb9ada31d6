"""The tables and views of an audit as Parquet files, for an auditor's own tools.

One file a table or view, in an order that the rows themselves give, so that the same log
exported twice by the same version is the same bytes (U4). The footer of each file names the
range of the log that it is made of, and what made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import pyarrow.parquet as pq

from ledger.audit.sql_texts import VIEWS
from ledger.audit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.audit.auditor import Room

__all__ = ["Exported", "export"]

#: What the questions of others were is no part of what the ledger says, and grows with each.
_LEFT_OUT = frozenset({"queries"})


@dataclass(frozen=True, slots=True)
class Exported:
    """One file that was written."""

    name: str
    path: Path
    rows: int


def export(
    room: Room, folder: Path, *, prefix: str, ends: tuple[int, ...], client: str
) -> Iterator[Exported]:
    """Write every table and view into a new folder; raise OSError where it is there already."""
    folder.mkdir(parents=True)
    about = {
        b"gpuledger.topic": f"{prefix}.events".encode(),
        # By partition, the first offset that is not in it.
        b"gpuledger.upto": orjson.dumps(list(ends)),
        b"gpuledger.made_by": client.encode(),
    }
    names = [one.name for one in TABLES if one.name not in _LEFT_OUT] + [one.name for one in VIEWS]
    for name in names:
        path = folder / f"{name}.parquet"
        yield Exported(name, path, _write(room, name, path, about))


def _write(room: Room, name: str, path: Path, about: dict[bytes, bytes]) -> int:
    writer, rows = None, 0
    try:
        for part in room.export(f"SELECT * FROM {name} ORDER BY ALL"):  # noqa: S608 - own names
            if writer is None:
                schema = part.schema.with_metadata({**(part.schema.metadata or {}), **about})
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            writer.write_table(part.cast(writer.schema))
            rows += part.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows
