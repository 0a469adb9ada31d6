"""The waiting line, kept by shape.

A *shape* is what decides whether a request fits: the quota it counts against, its
queue, its need, and its longest run where a plan or a budget asks for it. Requests of
one shape can stand in for each other, so when the first of them does not fit, none
does. A pass over the line therefore looks at heads of shapes only, least rank first,
and only at shapes that need something which has changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.core.quotas.quota import holder_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Need, Request, State

__all__ = [
    "Family",
    "Rank",
    "Shape",
    "ShapeKey",
    "Waiting",
    "replica_group",
    "run_limit",
    "shape_key",
]

#: (-priority, received µs, arrival): least first.
Rank = tuple[int, int, int]


#: A request in line: least first.
Head = tuple[Rank, str]


class ShapeKey(NamedTuple):
    """What a request asks, of which quota, in which queue, and for how long (µs) at most."""

    holder: str
    queue: str
    need: Need
    run_us: int | None
    #: The reservation within which it is to run.
    reservation: str | None = None


def run_limit(state: State, holder: str, queue: str, left_us: int | None) -> int | None:
    """Return the longest run as far as it matters: to plans, budgets of time, reservations."""
    matters = state.queues[queue].ordering == "backfill" or state.quotas[holder].budgeted
    return left_us if matters or state.reservations else None


def replica_group(request: Request) -> tuple[str, str]:
    """Replicas of a task are the requests of one source with one task id (C25)."""
    return request.id.partition("#")[0], request.task


def shape_key(state: State, request: Request) -> ShapeKey:
    """Return the shape of a request."""
    holder = holder_of(state, request.tenant, request.project)
    left = None if request.max_run_us is None else max(0, request.max_run_us - request.used_us)
    run_us = run_limit(state, holder, request.queue, left)
    # One whose reservation is gone waits as others do.
    within = request.reservation if request.reservation in state.reservations else None
    return ShapeKey(holder, request.queue, request.need, run_us, within)


class Shape:
    """The waiting requests of one shape, least rank first."""

    __slots__ = ("classes", "fair", "family", "key", "line", "root")

    def __init__(
        self, key: ShapeKey, classes: tuple[ClassKey, ...], family: Family, *, fair: bool
    ) -> None:
        """Start empty. ``fair``: its turn depends on what its quota has had lately."""
        self.key = key
        self.classes = classes
        self.family = family
        self.root = family.root
        self.fair = fair
        self.line: list[Head] = []

    @property
    def head(self) -> Head:
        """Rank and id of the request that is next."""
        return self.line[0]


class Family:
    """The shapes of one tree of quotas that need the same, and the first of each, in line.

    Where nothing is left for the first of them nothing is left for any, so a pass goes
    from one head to the next and ends there, however many wait.
    """

    __slots__ = ("fair", "heads", "need", "root", "shapes")

    def __init__(self, root: str, need: Need) -> None:
        """Start empty."""
        self.root = root
        self.need = need
        self.shapes: dict[Shape, None] = {}
        #: The heads of shapes whose turn is their rank; and the other shapes.
        self.heads: list[Head] = []
        self.fair: dict[Shape, None] = {}

    def after(self, head: Head | None) -> Iterator[Head]:
        """Yield the heads that come after this one; the family must not change meanwhile."""
        at = 0 if head is None else bisect_right(self.heads, head)
        yield from islice(self.heads, at, None)


class Waiting:
    """Every queued request, by shape, with the shapes by class, tree of quotas and queue."""

    __slots__ = (
        "_by_class",
        "_by_holder",
        "_by_queue",
        "_by_root",
        "_by_tag",
        "_families",
        "_fronts",
        "_shape_of",
        "shapes",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.shapes: dict[ShapeKey, Shape] = {}
        self._by_class: dict[ClassKey, dict[Shape, None]] = {}
        self._by_root: dict[str, dict[Shape, None]] = {}
        self._by_queue: dict[str, dict[Shape, None]] = {}
        self._by_holder: dict[str, dict[Shape, None]] = {}
        #: What is waited for beside devices and quota (`ledger.core.terms`) -> shapes.
        self._by_tag: dict[str, dict[Shape, None]] = {}
        #: Need -> topmost of a tree of quotas -> those of the tree that need it.
        self._families: dict[Need, dict[str, Family]] = {}
        #: Topmost of a tree of quotas -> the heads of its shapes, least first.
        self._fronts: dict[str, list[Head]] = {}
        #: Request -> the shape under which it is in line.
        self._shape_of: dict[str, Shape] = {}

    def add(self, state: State, request: Request, classes: tuple[ClassKey, ...]) -> None:
        """Put a request in line."""
        key = shape_key(state, request)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self._open(state, key, classes)
        self._shape_of[request.id] = shape
        one = (request.rank, request.id)
        old = shape.line[0] if shape.line else None
        insort(shape.line, one)
        if shape.line[0] is one:
            self._move_head(shape, old, one)

    def discard(self, request: Request) -> None:
        """Take a request out of the line."""
        shape = self._shape_of.pop(request.id)
        one = (request.rank, request.id)
        at = bisect_left(shape.line, one)
        del shape.line[at]
        if at == 0:
            self._move_head(shape, one, shape.line[0] if shape.line else None)
        if not shape.line:
            self._close(shape)

    def _open(self, state: State, key: ShapeKey, classes: tuple[ClassKey, ...]) -> Shape:
        """File a shape that nobody has waited in so far."""
        root = root_of(state, key.holder)
        family = self._families.setdefault(key.need, {}).get(root)
        if family is None:
            family = self._families[key.need][root] = Family(root, key.need)
        fair = state.queues[key.queue].fair_share
        shape = self.shapes[key] = Shape(key, classes, family, fair=fair)
        family.shapes[shape] = None
        if fair:
            family.fair[shape] = None
        self._fronts.setdefault(root, [])
        for kept, name in self._tables(shape):
            kept.setdefault(name, {})[shape] = None
        return shape

    def _close(self, shape: Shape) -> None:
        """Leave nothing behind of a shape in which nobody waits."""
        key, family = shape.key, shape.family
        del self.shapes[key], family.shapes[shape]
        family.fair.pop(shape, None)
        if not family.shapes:
            families = self._families[key.need]
            del families[shape.root]
            if not families:
                del self._families[key.need]
        for kept, name in self._tables(shape):
            shapes = kept[name]
            del shapes[shape]
            if not shapes:
                del kept[name]
        if shape.root not in self._by_root:
            del self._fronts[shape.root]

    def _tables(self, shape: Shape) -> Iterator[tuple[dict[Any, dict[Shape, None]], Any]]:
        """Yield where a shape is filed, and under what."""
        yield self._by_root, shape.root
        yield self._by_queue, shape.key.queue
        yield self._by_holder, shape.key.holder
        for tag in shape.key.need.tags:
            yield self._by_tag, tag
        for one in shape.classes:
            yield self._by_class, one

    def _move_head(self, shape: Shape, old: Head | None, new: Head | None) -> None:
        lines = [self._fronts[shape.root]]
        if not shape.fair:
            lines.append(shape.family.heads)
        for line in lines:
            if old is not None:
                del line[bisect_left(line, old)]
            if new is not None:
                insort(line, new)

    def reclassify(self, matches: Callable[[Need], tuple[ClassKey, ...]]) -> None:
        """Work out every shape's classes again."""
        self._by_class.clear()
        for shape in self.shapes.values():
            shape.classes = matches(shape.key.need)
            for one in shape.classes:
                self._by_class.setdefault(one, {})[shape] = None

    def shape_of(self, request: str) -> Shape:
        """Return the shape under which the request waits."""
        return self._shape_of[request]

    def families(
        self, classes: Collection[ClassKey], roots: Collection[str]
    ) -> Iterator[tuple[Need, Iterable[Family]]]:
        """Yield by need the families of these trees, and all that need one of the classes."""
        freed = frozenset(classes)
        for need, families in self._families.items():
            if not freed.isdisjoint(next(iter(next(iter(families.values())).shapes)).classes):
                yield need, families.values()
            elif roots:
                yield need, [families[root] for root in roots if root in families]

    def first(self, root: str, most: int) -> list[Shape]:
        """Return the shapes of a tree of quotas whose heads are first in line, up to ``most``."""
        return [self._shape_of[name] for _, name in self._fronts.get(root, ())[:most]]

    def of_holder(self, holder: str) -> Iterable[Shape]:
        """Return the shapes that count against this quota."""
        return self._by_holder.get(holder, ())

    def for_classes(self, classes: Iterable[ClassKey]) -> Iterator[Shape]:
        """Yield the shapes that need one of these, each once, in no order."""
        wanted = tuple(classes)
        for at, one in enumerate(wanted):
            for shape in self._by_class.get(one, ()):
                if not at or not any(other in shape.classes for other in wanted[:at]):
                    yield shape

    def width(self, classes: Iterable[ClassKey]) -> int:
        """Return how many shapes need these at most: one that needs several counts again."""
        return sum(len(self._by_class.get(one, ())) for one in classes)

    def in_tree(self, root: str) -> Iterable[Shape]:
        """Return the shapes that count against a tree of quotas, named by its topmost."""
        return self._by_root.get(root, ())

    def queues_of(self, root: str) -> set[str]:
        """Return the queues in which somebody of the tree of quotas waits."""
        return {shape.key.queue for shape in self._by_root.get(root, ())}

    def in_queue(self, queue: str) -> Iterable[Shape]:
        """Return the shapes that wait in this queue."""
        return self._by_queue.get(queue, ())

    @property
    def any_tagged(self) -> bool:
        """Whether anybody waits for something beside devices and quota."""
        return bool(self._by_tag)

    def tagged(self, tag: str) -> Iterable[Shape]:
        """Return the shapes that wait for this beside devices and quota."""
        return self._by_tag.get(tag, ())

    def filed(self) -> dict[object, object]:
        """Return which shapes are found under which class, tree, queue and tag, and the heads."""
        tables: tuple[Mapping[Any, dict[Shape, None]], ...] = (
            self._by_class,
            self._by_root,
            self._by_queue,
            self._by_holder,
            self._by_tag,
        )
        shapes: dict[object, object] = {
            (kind, name): {shape.key for shape in shapes}
            for kind, kept in enumerate(tables)
            for name, shapes in kept.items()
            if shapes
        }
        heads: dict[object, object] = {
            (need, root): (one.heads, {shape.key for shape in one.fair})
            for need, families in self._families.items()
            for root, one in families.items()
        }
        return {**shapes, **heads, "fronts": self._fronts}

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(len(shape.line) for shape in self.shapes.values())
