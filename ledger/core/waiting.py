"""The waiting line, kept by shape.

A *shape* is what decides whether a request fits: the quota it counts against, its
queue, its need, and its longest run where a plan or a budget asks for it. Requests of
one shape can stand in for each other, so when the first of them does not fit, none
does. A pass over the line therefore looks at heads of shapes only, least rank first,
and only at shapes that need something which has changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.core.quota import holder_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ledger.core.places import ClassKey
    from ledger.core.state import Need, Request, State

__all__ = ["Rank", "Shape", "ShapeKey", "Waiting", "replica_group", "run_limit", "shape_key"]

#: (-priority, received µs, arrival): least first.
Rank = tuple[int, int, int]


#: The topmost of a tree of quotas, and a need.
Family = tuple[str, "Need"]


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

    __slots__ = ("classes", "key", "line", "root")

    def __init__(self, key: ShapeKey, classes: tuple[ClassKey, ...], root: str) -> None:
        """Start empty."""
        self.key = key
        self.root = root
        self.classes = classes
        self.line: list[tuple[Rank, str]] = []

    @property
    def head(self) -> tuple[Rank, str]:
        """Rank and id of the request that is next."""
        return self.line[0]


class Waiting:
    """Every queued request, by shape, with the shapes by class, tree of quotas and queue."""

    __slots__ = (
        "_by_class",
        "_by_holder",
        "_by_queue",
        "_by_root",
        "_by_tag",
        "_families",
        "_keys",
        "shapes",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.shapes: dict[ShapeKey, Shape] = {}
        self._by_class: dict[ClassKey, dict[ShapeKey, Shape]] = {}
        self._by_root: dict[str, dict[ShapeKey, Shape]] = {}
        self._by_queue: dict[str, dict[ShapeKey, Shape]] = {}
        self._by_holder: dict[str, dict[ShapeKey, Shape]] = {}
        #: Shapes of one tree of quotas that need the same.
        self._families: dict[Family, dict[ShapeKey, Shape]] = {}
        #: What is waited for beside devices and quota (`ledger.core.terms`) -> shapes.
        self._by_tag: dict[str, dict[ShapeKey, Shape]] = {}
        #: Request -> the shape under which it is in line.
        self._keys: dict[str, ShapeKey] = {}

    def add(self, state: State, request: Request, classes: tuple[ClassKey, ...]) -> None:
        """Put a request in line."""
        key = self._keys[request.id] = shape_key(state, request)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(key, classes, root_of(state, key.holder))
            self._by_root.setdefault(shape.root, {})[key] = shape
            self._by_queue.setdefault(key.queue, {})[key] = shape
            self._by_holder.setdefault(key.holder, {})[key] = shape
            self._families.setdefault((shape.root, key.need), {})[key] = shape
            for tag in key.need.tags:
                self._by_tag.setdefault(tag, {})[key] = shape
            self._file(shape)
        insort(shape.line, (request.rank, request.id))

    def discard(self, request: Request) -> None:
        """Take a request out of the line."""
        key = self._keys.pop(request.id)
        shape = self.shapes[key]
        del shape.line[bisect_left(shape.line, (request.rank, request.id))]
        if not shape.line:
            del self.shapes[key]
            del self._by_root[shape.root][key]
            del self._by_queue[key.queue][key]
            for tag in key.need.tags:
                del self._by_tag[tag][key]
            for kept, name in (
                (self._by_holder, key.holder),
                (self._families, (shape.root, key.need)),
            ):
                del kept[name][key]  # type: ignore[index]
                if not kept[name]:  # type: ignore[index]
                    del kept[name]  # type: ignore[arg-type]
            self._unfile(shape)

    def reclassify(self, matches: Callable[[Need], tuple[ClassKey, ...]]) -> None:
        """Work out every shape's classes again."""
        self._by_class.clear()
        for shape in self.shapes.values():
            shape.classes = matches(shape.key.need)
            self._file(shape)

    def families(
        self, classes: Iterable[ClassKey], roots: Iterable[str]
    ) -> Iterator[tuple[Family, dict[ShapeKey, Shape]]]:
        """Yield the families of these trees, and those that need one of these classes."""
        freed, relieved = frozenset(classes), frozenset(roots)
        for family, shapes in self._families.items():
            if family[0] in relieved or not freed.isdisjoint(next(iter(shapes.values())).classes):
                yield family, shapes

    def of_holder(self, holder: str) -> Iterable[Shape]:
        """Return the shapes that count against this quota."""
        return self._by_holder.get(holder, {}).values()

    def for_classes(self, classes: Iterable[ClassKey]) -> Iterator[Shape]:
        """Yield the shapes that need one of these, each once, in no order."""
        wanted = tuple(classes)
        for at, one in enumerate(wanted):
            for shape in self._by_class.get(one, {}).values():
                if not at or not any(other in shape.classes for other in wanted[:at]):
                    yield shape

    def width(self, classes: Iterable[ClassKey]) -> int:
        """Return how many shapes need these at most: one that needs several counts again."""
        return sum(len(self._by_class.get(one, ())) for one in classes)

    def in_tree(self, root: str) -> Iterable[Shape]:
        """Return the shapes that count against a tree of quotas, named by its topmost."""
        return self._by_root.get(root, {}).values()

    def queues_of(self, root: str) -> set[str]:
        """Return the queues in which somebody of the tree of quotas waits."""
        return {key.queue for key in self._by_root.get(root, ())}

    def in_queue(self, queue: str) -> Iterable[Shape]:
        """Return the shapes that wait in this queue."""
        return self._by_queue.get(queue, {}).values()

    @property
    def any_tagged(self) -> bool:
        """Whether anybody waits, or has waited, for something beside devices and quota."""
        return bool(self._by_tag)

    def tagged(self, tag: str) -> Iterable[Shape]:
        """Return the shapes that wait for this beside devices and quota."""
        return self._by_tag.get(tag, {}).values()

    def filed(self) -> dict[object, set[ShapeKey]]:
        """Return which shapes are found under which class, tree, queue and tag."""
        tables: tuple[Mapping[Any, dict[ShapeKey, Shape]], ...] = (
            self._by_class,
            self._by_root,
            self._by_queue,
            self._by_tag,
        )
        return {
            (kind, name): set(shapes)
            for kind, kept in enumerate(tables)
            for name, shapes in kept.items()
            if shapes
        }

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(len(shape.line) for shape in self.shapes.values())

    def _file(self, shape: Shape) -> None:
        for one in shape.classes:
            self._by_class.setdefault(one, {})[shape.key] = shape

    def _unfile(self, shape: Shape) -> None:
        for one in shape.classes:
            del self._by_class[one][shape.key]
