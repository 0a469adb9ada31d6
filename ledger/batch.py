"""What a run of inputs leads to: records to append and messages to send, in the right order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.outbox import Message
    from ledger.log.port import Entry

__all__ = ["Batch"]


@dataclass(slots=True)
class Batch:
    """What a run of inputs leads to: records to append, then messages to send.

    ``dead`` and ``refused`` (their answers) depend on no state and go first.
    ``again`` are answers that leave no record. Once a later input's record is
    in the log, no load looks at theirs again, so they must be out by then:
    ``cuts`` holds how many entries, messages and answers go before each such record.
    """

    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    dead: list[Entry] = field(default_factory=list)
    refused: list[Message] = field(default_factory=list)
    again: list[Message] = field(default_factory=list)
    cuts: list[tuple[int, int, int]] = field(default_factory=list)

    def cut(self) -> None:
        """Let the answers so far go out before what is added from here on."""
        done = self.cuts[-1][2] if self.cuts else 0
        if len(self.again) > done:
            self.cuts.append((len(self.entries), len(self.messages), len(self.again)))

    def pieces(self) -> Iterator[tuple[int, list[Entry], list[Message]]]:
        """Yield what goes out together: the index of its first record, records, messages."""
        entries = messages = again = 0
        for end in [*self.cuts, (len(self.entries), len(self.messages), len(self.again))]:
            said = [*self.messages[messages : end[1]], *self.again[again : end[2]]]
            yield entries, self.entries[entries : end[0]], said
            entries, messages, again = end
