"""An index that follows nothing: for reading a long log, before `index.rebuild`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.derived.index import Index

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import Node, Request, Slice, State

__all__ = ["Unindexed"]


class Unindexed(Index):
    """An index that follows nothing: for reading a long log, before `rebuild`."""

    __slots__ = ()

    def classes_changed(self, state: State) -> None:
        """Follow nothing."""

    def facts_changed(self, state: State) -> None:
        """Follow nothing."""

    def needs_changed(self, state: State) -> None:
        """Follow nothing."""

    def quotas_changed(self, state: State, *, reshaped: bool) -> None:
        """Follow nothing."""

    def queue_changed(self, state: State, name: str) -> None:
        """Follow nothing."""

    def planned(self, request: Request) -> None:
        """Follow nothing."""

    def unplanned(self, state: State, request: Request) -> None:  # noqa: ARG002
        """Follow nothing but that there is no plan any more."""
        request.plan = None

    def kept(self, request: Request, sign: int) -> None:
        """Follow nothing."""

    def leased(self, state: State, request: Request, lease: str, holder: str) -> None:  # noqa: ARG002
        """Follow replicas alone, once they are asked for: a rule of the fold looks at them."""
        self._replica(request, lease, here=True)

    def unleased(self, state: State, request: Request, lease: str, holder: str) -> None:  # noqa: ARG002
        """Follow replicas alone."""
        self._replica(request, lease, here=False)

    def relieve(self, state: State, holder: str) -> None:
        """Follow nothing."""

    def queued(self, state: State, request: Request) -> None:
        """Follow nothing."""

    def unqueued(self, state: State, request: Request) -> None:
        """Follow nothing."""

    def tightened(self, state: State, holder: str) -> None:
        """Follow nothing."""

    def due(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Follow nothing."""

    def refresh_node(self, state: State, node: Node) -> None:
        """Follow nothing."""

    def refresh(self, state: State, node: Node, uuids: Iterable[str]) -> None:
        """Follow nothing."""

    def refresh_bare(self, state: State, node: Node) -> None:
        """Follow nothing."""

    def forget_slice(self, state: State, item: Slice) -> None:
        """Follow nothing."""

    def free_class(self, state: State, node: Node) -> None:
        """Follow nothing."""
