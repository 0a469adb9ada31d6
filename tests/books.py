"""Metering and the bill counted three ways, on as many random logs as are asked for.

``python -m tests.books --logs 1000`` draws logs to which everything happens, and holds against
each other: the meter and the bill of the ledger (record by record, through the state), plain
Python over the events (`tests.metering_oracle`, `tests.billing_oracle`, no code of the
ledger), and the books that a database makes of the archive (`ledger.books`). All must be equal
to the microsecond and to the nano. The exit status is 1 where one differs. With ``--demo`` the
log is the demonstration's month, with all of its devices: that takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.archive.files import Builder
from ledger.archive.folder import file_path
from ledger.books.make import open_books
from ledger.log.port import Record
from ledger.metering.calendar import span_of, zone_of
from tests.billing_oracle import oracle_bill
from tests.billing_support import (
    EVERYTHING,
    FOREVER_MONTH,
    charges,
    issued,
    oracle_prices,
    tariff,
)
from tests.demo_support import run_whole
from tests.metering_logs import FOREVER, metered, random_log, sums
from tests.metering_oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.billing.charges import Charge
    from ledger.books.make import Books
    from ledger.metering.calendar import Period

__all__ = ["STEPS", "Counted", "archived", "by_books", "by_ledger", "by_ledger_lines"]
__all__ += ["by_ledger_times", "by_oracle", "compare", "of_books", "of_oracle"]

STEPS = 150
TOPIC = "gpuledger.events"

#: (device, unit, state, cause, owner) -> thousandths x µs.
Times = Counter[Any]
#: (device, unit, state, cause, from, until, milli, owner, payer, price, nano, list, agreed).
Line = tuple[Any, ...]


class Counted(NamedTuple):
    """What one way of counting says of a log: time, and the lines of its bill in order."""

    times: Times
    lines: list[Line]


def by_ledger(values: Sequence[bytes]) -> Counted:
    """Count by the meter and the bill."""
    return Counted(by_ledger_times(values), by_ledger_lines(values, FOREVER_MONTH))


def by_ledger_lines(values: Sequence[bytes], month: Period) -> list[Line]:
    """Return the bill of a month, as the whole log tells it."""
    bill = charges(issued(values, month, tariff(), grace_us=10**18, marked=False).origins)
    return sorted(map(_line, bill))


def by_ledger_times(values: Sequence[bytes]) -> Times:
    """Count time by the meter."""
    rows, _ = metered(values)
    return sums(row for row in rows if row.state != "reserved")


def _line(one: Charge) -> Line:
    held = one.piece.holding
    return (
        one.piece.device, one.piece.unit, one.piece.state, one.piece.cause, one.start_s, one.end_s,
        one.piece.milli, (held.lease or held.request) if held else "",
        held.tenant if held and one.holder_pays else "", one.price.id, one.priced_nano,
        one.list_atto, one.contracted_atto,
    )  # fmt: skip


def by_oracle(values: Sequence[bytes]) -> Counted:
    """Count by plain Python over the events."""
    return of_oracle(Oracle(values), FOREVER_MONTH)


def of_oracle(oracle: Oracle, month: Period) -> Counted:
    """Return what an oracle says of the devices that it follows."""
    times = {
        key: n for key, n in oracle.sums(0, FOREVER).items()
        if key[2] != "reserved" and (oracle.only is None or key[0] in oracle.only)
    }  # fmt: skip
    bill = oracle_bill(
        oracle, month.start_us // 1_000_000, month.end_us // 1_000_000, oracle_prices(),
        set(EVERYTHING.holder_pays),
    )  # fmt: skip
    lines = [
        (
            one["device"], one["unit"], one["state"], one["cause"], one["start"], one["end"],
            one["milli"], one["owner"], one["payer"], one["price"]["id"], one["nano"], one["list"],
            one["contracted"],
        )
        for one in bill
    ]  # fmt: skip
    return Counted(Counter(times), sorted(lines))


def archived(logs: Sequence[Sequence[bytes]], folder: Path) -> None:
    """Write logs as the partitions of one archive."""
    for number, values in enumerate(logs):
        builder = Builder(TOPIC, number, len(logs))
        for offset, value in enumerate(values):
            builder.add(Record(TOPIC, number, offset, offset, b"c", value))
        first, last, data = builder.finish()
        path = file_path(folder, TOPIC, number, first, last)
        path.parent.mkdir(parents=True)
        path.write_bytes(data)


_TIMES = """
SELECT devices.p, devices.device, coalesce(slices.slice, devices.device),
       split_part(kind, ' ', 1), split_part(kind, ' ', 2), coalesce(owner, ''),
       CAST(sum(CAST(milli AS HUGEINT) * (tiles.t1 - tiles.t0)) AS HUGEINT)
FROM tiles JOIN devices USING (d) LEFT JOIN slices USING (s) LEFT JOIN owners USING (o)
GROUP BY ALL
"""
_LINES = """
SELECT devices.p, devices.device, coalesce(slices.slice, devices.device),
       split_part(kind, ' ', 1), split_part(kind, ' ', 2), start_s, end_s, milli,
       coalesce(owner, ''), CASE WHEN holder_pays THEN tenant ELSE '' END, price, nano,
       list_atto, agreed_atto
FROM charges JOIN devices USING (d) LEFT JOIN slices USING (s) LEFT JOIN owners USING (o)
"""


def by_books(logs: Sequence[Sequence[bytes]], month: Period = FOREVER_MONTH) -> list[Counted]:
    """Count all logs at once by the books of an archive of them."""
    with tempfile.TemporaryDirectory() as folder:
        archived(logs, Path(folder))
        books = open_books(Path(folder))
        books.meter()
        books.bill(month, tariff())
        found = of_books(books, len(logs))
        books.close()
    return found


def of_books(books: Books, count: int) -> list[Counted]:
    """Return what books say of each of their partitions; their bill must have been made."""
    times: defaultdict[int, Times] = defaultdict(Counter)
    lines: defaultdict[int, list[Line]] = defaultdict(list)
    for number, *key, amount in books.rows(_TIMES):
        times[number][tuple(key)] = amount
    for number, *line in books.rows(_LINES):
        lines[number].append(tuple(line))
    return [Counted(times[number], sorted(lines[number])) for number in range(count)]


def compare(seeds: Sequence[int], steps: int = STEPS) -> list[str]:
    """Return what is not the same in the logs of some seeds, in words."""
    logs = [random_log(seed, steps) for seed in seeds]
    wrong = []
    for seed, values, books in zip(seeds, logs, by_books(logs), strict=True):
        wanted = by_oracle(values)
        for name, found in (("ledger", by_ledger(values)), ("books", books)):
            for what, mine, theirs in (
                ("times", sorted(found.times.items()), sorted(wanted.times.items())),
                ("lines", found.lines, wanted.lines),
            ):
                differ = [one for one in mine if one not in theirs]
                differ += [one for one in theirs if one not in mine]
                if differ or mine != theirs:
                    wrong.append(f"seed {seed}: {what} of the {name} differ: {differ[:2]}")
    return wrong


def compare_demo() -> int:
    """Count the demonstration's month three ways, every device of it; return the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        month = run_whole(Path(folder))
        records = [one.value or b"" for one in month.records["events"]]
    september = span_of("2020-09", zone_of("UTC"))
    rows, _ = metered(records)
    (books,) = by_books([records], september)
    plain = of_oracle(Oracle(records), september)
    times = sums(row for row in rows if row.state != "reserved")
    lines = by_ledger_lines(records, september)
    same = {
        "time, by record and by plain Python": times == plain.times,
        "time, by SQL and by plain Python": books.times == plain.times,
        "bill, by record and by plain Python": lines == plain.lines,
        "bill, by SQL and by plain Python": books.lines == plain.lines,
    }
    for name, equal in same.items():
        sys.stdout.write(f"{name}: {'equal' if equal else 'DIFFERENT'}\n")
    sys.stdout.write(
        f"{len({key[0] for key in plain.times})} devices, {len(plain.times)} sums of time,"
        f" {len(plain.lines)} charges, {time.monotonic() - began:.0f} s\n"
    )
    return 0 if all(same.values()) else 1


def main() -> int:
    """Compare the logs of the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--at-once", type=int, default=50, help="logs that one archive holds")
    parser.add_argument("--demo", action="store_true", help="the demonstration's month instead")
    asked = parser.parse_args()
    began, wrong, done = time.monotonic(), 0, 0
    if asked.demo:
        return compare_demo()
    seeds = range(asked.first, asked.first + asked.logs)
    for at in range(0, asked.logs, asked.at_once):
        chosen = seeds[at : at + asked.at_once]
        for text in compare(chosen, asked.steps):
            wrong += 1
            sys.stdout.write(f"{text}\n")
        random_log.cache_clear()
        done += len(chosen)
        sys.stderr.write(f"\r{done} of {asked.logs} logs, {wrong} differences")
    seconds = time.monotonic() - began
    sys.stdout.write(f"\n{done} logs of {asked.steps} acts, {wrong} differences, {seconds:.0f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
