"""Hold a log against a signed checkpoint, and name the first record that is not as signed.

Theory of operation. The log is read once, up to the size that was signed, and the tree
and the chain are made again. Equal root and equal chain: these are the records that
were signed, all of them, in this order. If not, the hashes kept beside the checkpoint
say which record is the first that differs; they are trusted only as far as they
follow from the signed root. Where they are missing or were changed too, the answer is
a range: 256 records where the level above is there, else what lies between two signed
checkpoints. What became of the record is then told from what stands around it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.log import port
from ledger.proof.evidence import Evidence, Kept
from ledger.proof.leaf import GENESIS, link, record_hash
from ledger.proof.tiles import WIDTH, Edge
from ledger.verify import Fault
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.log.port import Log, Record

__all__ = ["Verdict", "check_log"]

_CHUNK = 5000
_WAIT_S = 5.0
#: How far around a record its like is looked for, to say what became of it, in tiles.
_NEAR = 256


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a log is, held against one checkpoint.

    ``end`` is where the log ends now: the records from ``size`` on are newer than the
    checkpoint, and not proved. The faults' kinds are ``hole``, ``overlap``,
    ``truncated``, ``storage``, ``changed``, ``dropped``, ``swapped``, ``repeated``,
    ``inserted``, ``rewritten``, ``chain`` and ``inconsistent``. ``exact``: the first
    fault's offset is the first bad record; otherwise it begins the range that its
    detail names.
    """

    path: str
    origin: str
    partition: int
    size: int
    time_us: int
    end: int
    faults: tuple[Fault, ...]
    exact: bool
    notes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {"ok": not self.faults, **asdict(self)}


async def check_log(
    log: Log,
    prefix: str,
    evidence: Sequence[Evidence],
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Hold the log's events against each checkpoint; faults are returned, not raised.

    The log's own errors pass, except that damaged storage is a fault.
    """
    topic = full_name(prefix, "events")
    total = sum(one.checkpoint.size for one in evidence)
    before = 0

    def show(done: int) -> None:
        if progress is not None:
            progress(before + done, total)

    verdicts = []
    for one in evidence:
        scan = _Scan(log, topic, one)
        await scan.run(show)
        verdicts.append(await scan.verdict())
        before += one.checkpoint.size
        show(0)
    return verdicts


@dataclass(slots=True)
class _Scan:
    """One pass over one partition."""

    log: Log
    topic: str
    evidence: Evidence
    kept: Kept = field(init=False)
    edge: Edge = field(default_factory=Edge)
    chain: bytes = GENESIS
    next: int = 0
    #: What is wrong with the places of records, whatever is in them.
    placed: list[Fault] = field(default_factory=list)
    first: int | None = None
    wrong: int = 0
    #: The first record that could not be compared, and the first 256 of those that differ.
    blind: int | None = None
    block: tuple[int, int] | None = None
    #: The largest older checkpoint that the log bears out, and the first that it does not.
    right: int = 0
    off: int | None = None
    end: int = 0

    def __post_init__(self) -> None:
        self.kept = Kept(self.evidence)

    @property
    def size(self) -> int:
        return self.evidence.checkpoint.size

    @property
    def partition(self) -> int:
        return self.evidence.checkpoint.partition

    async def run(self, progress: Callable[[int], None]) -> None:
        """Read the partition up to the size that was signed."""
        sizes = {one.size: one.root for one in self.evidence.older}
        if self.partition < await self.log.partitions(self.topic):
            self.end = await self.log.end(self.topic, self.partition)
        limit = _CHUNK
        while self.next < min(self.size, self.end):
            try:
                wanted = min(limit, self.size - self.next)
                records = await self.log.read(
                    self.topic, self.partition, self.next, wanted, _WAIT_S
                )
            except port.LogDamaged as error:
                if limit > 1:  # to stop at the very record
                    limit = 1
                    continue
                self._misplaced("storage", self.next, str(error))
                return
            if not records:
                detail = f"the log ends at {self.end}, but has nothing from here on"
                self._misplaced("hole", self.next, detail)
                return
            for record in records:
                if self._place(record):
                    self._take(record, sizes)
            progress(self.next)
        if self.next < self.size:
            self._misplaced(
                "truncated",
                self.next,
                f"the log ends here, but {self.size} records were signed: {self.next} to"
                f" {self.size - 1} are missing; it was cut off, or an older copy of it put in"
                " its place",
            )

    def _place(self, record: Record) -> bool:
        """Say whether the record is to be taken; note it where it is not the next one."""
        if record.offset < self.next:
            detail = f"the next offset should be {self.next}"
            self._misplaced("overlap", record.offset, detail)
            return False
        if record.offset > self.next:
            last = min(record.offset, self.size) - 1
            self._misplaced("hole", self.next, f"the records {self.next} to {last} are missing")
            self.next = record.offset
        return record.offset < self.size

    def _misplaced(self, kind: str, offset: int, detail: str) -> None:
        self.placed.append(Fault(kind, self.topic, self.partition, offset, detail))

    def _take(self, record: Record, sizes: dict[int, bytes]) -> None:
        """Compare one record with what was signed."""
        leaf = record_hash(record)
        expected = self.kept.leaf(self.next)
        if expected is None:
            self.blind = self.next if self.blind is None else self.blind
        elif leaf != expected:
            self.first = self.next if self.first is None else self.first
            self.wrong += 1
        self.next += 1
        if self.placed:
            return  # a tree with a hole in it is none
        self.chain = link(self.chain, leaf)
        for level, index, hashes in self.edge.append(leaf):
            if level == 0 and self.blind is not None and self.blind // WIDTH == index:
                self._judge_block(index, hashes)
        root = sizes.get(self.next)
        if root is not None and self.off is None:
            if self.edge.root() == root:
                self.right = self.next
            else:
                self.off = self.next

    def _judge_block(self, index: int, hashes: Sequence[bytes]) -> None:
        """Hold 256 leaves that are not known one by one against the level above."""
        differs = self.kept.differs(index, hashes)
        if differs is False:
            self.blind = None  # all of them are right
        elif differs and self.block is None:
            self.block = (index * WIDTH, index * WIDTH + WIDTH - 1)

    async def verdict(self) -> Verdict:
        """Return what was found."""
        faults = list(self.placed)
        whole = not self.placed
        same = whole and self.edge.root() == self.evidence.checkpoint.root
        if self.first is not None:
            faults.append(await _Story(self).fault(self.first))
        if self.block or (self.first is None and not same and (whole or self.off)):
            faults.append(self._somewhere())
        faults += self._not_one_history(same=same)
        faults.sort(key=lambda one: one.offset)
        # What was not seen record by record may hide an earlier one.
        exact = not faults or self.blind is None or faults[0].offset <= max(self.blind, self.right)
        if faults and self.first != faults[0].offset:
            exact = exact and faults[0] in self.placed
        one = self.evidence.checkpoint
        notes = (*self.evidence.notes, *self.kept.notes)
        return Verdict(
            str(self.evidence.path), one.origin, one.partition, one.size, one.time_us, self.end,
            tuple(faults), exact, notes,
        )  # fmt: skip

    def _somewhere(self) -> Fault:
        """Return the smallest range in which something is not as it was signed."""
        first, last = self.right, (self.off or self.size) - 1
        if self.block is not None:
            first, last = max(first, self.block[0]), min(last, self.block[1])
        detail = (
            f"one of the records {first} to {last} is not as it was signed; the hashes kept"
            " beside the checkpoint would name it, but they are missing or were changed too"
        )
        return Fault("changed", self.topic, self.partition, first, detail)

    def _not_one_history(self, *, same: bool) -> Iterator[Fault]:
        """Hold the checkpoints against each other: the signer may not take anything back (U2)."""
        one = self.evidence.checkpoint
        if same and self.chain != one.chain:
            detail = "the tree is the one signed, the chain is not: the signer was wrong"
            yield Fault("chain", self.topic, self.partition, one.size, detail)
        if same and self.off is not None:
            detail = f"the checkpoint of {self.off} records is of another history than this one"
            yield Fault("inconsistent", self.topic, self.partition, self.right, detail)
        times = [*(each.time_us for each in self.evidence.older), one.time_us]
        if times != sorted(times):
            detail = "the checkpoints' times fall while their sizes grow"
            yield Fault("inconsistent", self.topic, self.partition, one.size, detail)


class _Story:
    """What became of the first record that is not as it was signed."""

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan

    async def fault(self, offset: int) -> Fault:
        """Return the fault at the first record that differs, of the most telling kind."""
        scan = self._scan
        kind, detail = await self._kind(offset)
        more = scan.wrong - 1
        return Fault(kind, scan.topic, scan.partition, offset, detail, more)

    async def _kind(self, offset: int) -> tuple[str, str]:
        here = await self._record(offset)
        if here is None:
            return "changed", "this record is not the one that was signed"
        home = self._home(here, offset)
        if home is not None and home < offset:
            return "repeated", f"record {home} stands here again"
        there = None if home is None else await self._record(home)
        if there is not None and self._is(there, offset):
            return "swapped", f"this record and record {home} have changed places"
        behind = await self._record(offset + 1)
        if behind is not None and self._is(behind, offset):
            what = "a record that was never signed" if home is None else f"a copy of record {home}"
            return "inserted", f"{what} stands here, before the one that was signed"
        if home is not None:
            lost = f"s {offset} to {home - 1} are" if home > offset + 1 else f" {offset} is"
            return "dropped", f"record{lost} gone, and record {home} stands here"
        scan = self._scan
        if scan.wrong > 1 and scan.wrong == scan.next - offset:
            return "rewritten", (
                f"none of the records {offset} to {scan.next - 1} is what was signed: the log was"
                " cut or set back to here, and written anew"
            )
        return "changed", "this record is not the one that was signed"

    async def _record(self, offset: int) -> Record | None:
        scan = self._scan
        try:
            records = await scan.log.read(scan.topic, scan.partition, offset, 1)
        except port.LogDamaged:
            return None
        return records[0] if records and records[0].offset == offset else None

    def _home(self, record: Record, offset: int) -> int | None:
        """Return where this content was signed, the nearest place; None for nowhere near."""
        kept, size, middle = self._scan.kept, self._scan.size, offset // WIDTH
        for distance in range(_NEAR):
            found = [
                at
                for tile in {middle - distance, middle + distance}
                if 0 <= tile * WIDTH < size
                for at, leaf in enumerate(kept.leaves(tile) or (), tile * WIDTH)
                if record_hash(record, at) == leaf
            ]
            if found:
                return min(found, key=lambda at: abs(at - offset))
        return None

    def _is(self, record: Record, offset: int) -> bool:
        """Say whether a record's content is what was signed for an offset."""
        if offset >= self._scan.size:
            return False
        return record_hash(record, offset) == self._scan.kept.leaf(offset)
