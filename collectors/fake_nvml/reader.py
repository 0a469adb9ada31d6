"""Answers from a fake node in this process: what a simulated node's agent asks.

The same operations over the same calls as the child process of a real node; only the
process is missing, so a thousand nodes fit into one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.faults import CallHung
from collectors.fake_nvml.library import FakeLibrary
from collectors.fake_nvml.node import on
from collectors.nvml import calls
from collectors.nvml.ops import OPS
from collectors.nvml.session import Session
from collectors.nvml.watchdog import ANSWER_S, Hung

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from collectors.fake_nvml.node import FakeNode

__all__ = ["FakeAsker", "fake_library"]


def fake_library() -> AbstractContextManager[None]:
    """Return a context in which all calls of this process go to fake nodes."""
    return calls.library(FakeLibrary())


class FakeAsker:
    """Asks a node, as `collectors.nvml.watchdog.NvmlChild` asks the hardware.

    The process must use the fake library (`fake_library`). A call that hangs raises `Hung`
    at once: simulated time is not waited for.
    """

    def __init__(self, node: FakeNode, session: Callable[[], Session] = Session) -> None:
        """Ask this node, in a session that is made so."""
        self.node = node
        self._make_session = session
        self._session = session()

    async def ask(
        self,
        op: str,
        *,
        timeout_s: float | None = None,
        hurry: asyncio.Event | None = None,
        **arguments: Any,
    ) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        with on(self.node):
            try:
                return OPS[op](self._session, **arguments)
            except CallHung as hung:
                # The process would have been killed, and its session with it.
                self._session = self._make_session()
                about = hung.gpu or arguments.get("uuid", "")
                limit_s = ANSWER_S if timeout_s is None else timeout_s
                raise Hung(op, f"{hung.function} {about}".strip(), limit_s) from None

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""
        with on(self.node):
            self._session.close()
