"""The waiting line, kept by shape.

A *shape* is (tenant, queue, need): requests of one shape can stand in for each
other, so when the first of them does not fit, none does. A pass over the line
therefore looks at heads of shapes only, least rank first, and only at shapes
that need something which has changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.core.places import ClassKey
    from ledger.core.state import Need, Request

__all__ = ["Rank", "Shape", "ShapeKey", "Waiting"]

#: (-priority, received µs, arrival): least first.
Rank = tuple[int, int, int]
ShapeKey = tuple[str, str, "Need"]


class Shape:
    """The waiting requests of one shape, least rank first."""

    __slots__ = ("classes", "key", "line")

    def __init__(self, key: ShapeKey, classes: tuple[ClassKey, ...]) -> None:
        """Start empty."""
        self.key = key
        self.classes = classes
        self.line: list[tuple[Rank, str]] = []

    @property
    def head(self) -> tuple[Rank, str]:
        """Rank and id of the request that is next."""
        return self.line[0]


class Waiting:
    """Every queued request, by shape, with the shapes by class, tenant and queue."""

    __slots__ = ("_by_class", "_by_queue", "_by_tenant", "shapes")

    def __init__(self) -> None:
        """Start empty."""
        self.shapes: dict[ShapeKey, Shape] = {}
        self._by_class: dict[ClassKey, dict[ShapeKey, Shape]] = {}
        self._by_tenant: dict[str, dict[ShapeKey, Shape]] = {}
        self._by_queue: dict[str, dict[ShapeKey, Shape]] = {}

    def add(self, request: Request, classes: tuple[ClassKey, ...]) -> None:
        """Put a request in line."""
        key = (request.tenant, request.queue, request.need)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(key, classes)
            self._by_tenant.setdefault(key[0], {})[key] = shape
            self._by_queue.setdefault(key[1], {})[key] = shape
            self._file(shape)
        insort(shape.line, (request.rank, request.id))

    def discard(self, request: Request) -> bool:
        """Take a request out of the line; say whether it was in it."""
        key = (request.tenant, request.queue, request.need)
        shape = self.shapes.get(key)
        if shape is None:
            return False
        entry = (request.rank, request.id)
        at = bisect_left(shape.line, entry)
        if at == len(shape.line) or shape.line[at] != entry:
            return False
        del shape.line[at]
        if not shape.line:
            del self.shapes[key]
            del self._by_tenant[key[0]][key]
            del self._by_queue[key[1]][key]
            self._unfile(shape)
        return True

    def reclassify(self, matches: Callable[[Need], tuple[ClassKey, ...]]) -> None:
        """Work out every shape's classes again."""
        self._by_class.clear()
        for shape in self.shapes.values():
            shape.classes = matches(shape.key[2])
            self._file(shape)

    def touched(
        self, classes: Iterable[ClassKey], tenants: Iterable[str], queues: Iterable[str]
    ) -> list[Shape]:
        """Return the shapes that need one of these, least head first."""
        found: dict[ShapeKey, Shape] = {}
        wanted: tuple[tuple[Mapping[Any, dict[ShapeKey, Shape]], Iterable[object]], ...] = (
            (self._by_class, classes),
            (self._by_tenant, tenants),
            (self._by_queue, queues),
        )
        for kept, names in wanted:
            for name in names:
                found.update(kept.get(name, {}))
        return sorted(found.values(), key=lambda shape: shape.line[0])

    def queues_of(self, tenant: str) -> set[str]:
        """Return the queues in which the tenant waits."""
        return {key[1] for key in self._by_tenant.get(tenant, ())}

    def in_queue(self, queue: str) -> Iterable[Shape]:
        """Return the shapes that wait in this queue."""
        return self._by_queue.get(queue, {}).values()

    def filed(self) -> dict[object, set[ShapeKey]]:
        """Return which shapes are found under which class, tenant and queue."""
        tables: tuple[Mapping[Any, dict[ShapeKey, Shape]], ...] = (
            self._by_class,
            self._by_tenant,
            self._by_queue,
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
