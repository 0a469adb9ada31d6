"""How much one decision may do, so that its record always fits into the log.

A decision is one record, and a log takes records up to a size. What is bounded by
the input (an inventory's devices) is bounded by its model; what is not (how many
requests fall due at once, or fit at once when a quota is raised) is cut here and
goes on with the next decision, which the runner's tick brings about at once.
"""

from __future__ import annotations

__all__ = [
    "EVENT_WEIGHT",
    "EVICTION_REST_US",
    "LEASE_WEIGHT",
    "MAX_COPIED_TEXT",
    "MAX_DUE",
    "MAX_EVICTED_BYTES",
    "MAX_GIVEN",
    "MAX_MOVED",
    "MAX_QUOTA_DEPTH",
    "MAX_RESERVATIONS",
    "MAX_RUN_US",
]

#: Events after which no further deadline fires in one decision; those left are still due.
MAX_DUE = 4_000

#: Units given in one pass, each lease counted as `LEASE_WEIGHT` more: about 4 MiB.
MAX_GIVEN = 40_000
LEASE_WEIGHT = 8
#: What an event of an eviction counts for beside that.
EVENT_WEIGHT = 4

#: What the events of one eviction may take, about: where more would have to end for a
#: request, nobody is evicted for it. Some 8,000 leases, each of one node.
MAX_EVICTED_BYTES = 4 * 1_048_576

#: Characters of evidence that one record has again and again, once for each unit that it is
#: about. What is longer stands in it once, and the units name the order that has it.
MAX_COPIED_TEXT = 100_000

#: The longest run that a lease may come to, however often it is extended: what a request may
#: state at most (`schemas.base.Seconds`). So no end is beyond what every reader has as a date.
MAX_RUN_US = 1_000_000_000_000_000

#: Reservations that a cell has at once: each is looked at wherever its nodes are.
MAX_RESERVATIONS = 1_000

#: Nodes that the moves of reservations name in one decision, beyond which no other is moved:
#: those left are short until the next. About 1 MiB.
MAX_MOVED = 16_000

#: Quotas one above the other: what a tree has left is asked upwards, one call for each.
MAX_QUOTA_DEPTH = 32

#: How long who was evicted has nobody evicted (µs). Each request then evicts at most once
#: in such a time, so at no instant do evictions go round without an end (Q5).
EVICTION_REST_US = 300_000_000
