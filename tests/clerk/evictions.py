"""What must be true of an eviction, by trying out what would be without it (Q5, Q6, C23, C25)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.clerk.asked import Asked
    from tests.clerk.books import Books

__all__ = ["Evictions"]


#: How long a request that was evicted has nobody evicted (Q5).
REST_US = 300_000_000


class Evictions:
    """Looks at the books as they are before the first victim is told to stop."""

    def __init__(self, books: Books) -> None:
        """Look at these books."""
        self.books = books
        #: (who, whom) -> how often, since an operator last changed a rule.
        self.done: Counter[tuple[str, str]] = Counter()
        #: Request -> until when it has nobody evicted, because it was evicted itself.
        self.rests: dict[str, int] = {}

    def look(
        self, by: str, rules: dict[str, str], parts: list[dict[str, Any]], now_us: int
    ) -> None:
        """Refuse an eviction of ``rules`` (lease -> rule) for a place that it does not justify."""
        books = self.books
        asked = books.asked[by]
        assert rules, "an eviction of nobody"
        assert now_us >= self.rests.get(by, 0), f"Q5: {by} was evicted a moment ago"
        for lease, rule in rules.items():
            assert lease in books.held, f"{lease} is over"
            assert lease not in books.stopping, f"{lease} is stopped twice"
            self._entitled(asked, lease, rule)
            whom = books.request_of(lease).id
            self.done[by, whom] += 1
            turns = min(self.done[by, whom], self.done[whom, by])
            # Once may be right, when others have come or gone in between; a habit is not.
            assert turns <= 1, f"Q5: {whom} and {by} evict each other in turn"
            self.rests[whom] = now_us + REST_US
        self._replicas(rules)
        self._borrowed(asked, rules)
        for part in parts:
            for unit in part["units"]:
                assert books.able(unit), f"C23: {unit} is out of use"
                assert books.kept_for(unit) is None, f"C23: {unit} is kept for another"
        assert self.could_run(asked, rules), f"Q6: {by} cannot run even without {list(rules)}"
        for lease in rules:
            rest = {name: rule for name, rule in rules.items() if name != lease}
            assert not self.could_run(asked, rest, doubt=False), (
                f"Q6: {by} could run with {lease}: {rules}"
            )
        assert not self.could_run(asked, {}, doubt=False), f"Q6: {by} needs nobody evicted"

    def could_run(self, asked: Asked, rules: dict[str, str], *, doubt: bool = True) -> bool:
        """Say whether the request could run if only these leases ended: place, quota, right."""
        books = self.books
        holder = books.holder(asked)
        for amounts in books.places(asked, rules, doubt=doubt):
            fits = True
            for resource in books.tree.resources(holder):
                much = amounts.of(resource)
                usage = books.usage(resource, rules, leaving=holder)
                usage[holder] += much
                if much and books.tree.fault(holder, resource, usage) is not None:
                    fits = False
                for lease, rule in rules.items():
                    other = books.holder(books.request_of(lease))
                    if much and self._owed(holder, other, lease, rule):
                        usage = books.usage(resource, rules)
                        usage[holder] += much
                        stop = self._shared(holder, other)
                        fits = fits and books.tree.within_own(holder, resource, usage, stop)
            if fits:
                return True
        return False

    def _owed(self, mine: str, other: str, lease: str, rule: str) -> bool:
        """Say whether only who is within its own may have it: who borrows takes of no lender."""
        tree = self.books.tree
        if mine == other or tree.root(mine) != tree.root(other):
            return False
        return rule == "reclaim" or not self._borrowed_by(other, lease, self._shared(mine, other))

    def _borrowed_by(
        self, other: str, lease: str, stop: set[str], without: Collection[str] = ()
    ) -> int:
        """Return how much the quota has of others, of what the lease counts for."""
        amounts = self.books.request_of(lease).amounts
        used = {
            one: self.books.usage(one, without)
            for one in self.books.tree.resources(other)
            if amounts is not None and amounts.of(one)
        }
        return self.books.tree.borrowed(other, used, stop)

    def _entitled(self, asked: Asked, lease: str, rule: str) -> None:
        books = self.books
        queue = books.queues[asked.queue]
        victim = books.request_of(lease)
        mine, other = books.holder(asked), books.holder(victim)
        lower = victim.priority < asked.priority
        if rule == "priority":
            assert lower, f"{lease} is not of a lower priority"
            assert victim.preemptible, f"{lease} is not preemptible"
            allowed = {"any-tenant"} | ({"same-tenant"} if mine == other else set())
            assert queue.get("preemption", "never") in allowed
            return
        assert rule == "reclaim"
        assert queue.get("reclaim", "never") in ({"any", "lower-priority"} if lower else {"any"})
        assert mine != other
        assert books.tree.root(mine) == books.tree.root(other)

    def _shared(self, mine: str, other: str) -> set[str]:
        tree = self.books.tree
        return set(tree.chain(mine)) & set(tree.chain(other))

    def _borrowed(self, asked: Asked, rules: dict[str, str]) -> None:
        """No more is reclaimed of a quota than it borrows, but for the last lease's rest."""
        books = self.books
        mine = books.holder(asked)
        by_holder: dict[str, list[str]] = {}
        for lease, rule in rules.items():
            if rule == "reclaim":
                by_holder.setdefault(books.holder(books.request_of(lease)), []).append(lease)
        for other, leases in by_holder.items():
            stop = self._shared(mine, other)
            others = [name for name in rules if name not in leases]
            found = False
            for last in leases:
                rest = [name for name in leases if name != last]
                for gone in (rest, [*others, *rest]):
                    found = found or bool(self._borrowed_by(other, last, stop, gone))
            assert found, f"Q3: {other} does not borrow what {leases} hold"

    def _replicas(self, rules: Collection[str]) -> None:
        """C25: no task is left with fewer replicas than it must keep."""
        books = self.books
        gone = Counter(books.request_of(lease).group for lease in rules)
        for group, count in gone.items():
            live = books.live(group)
            floor = max((one.replicas_min for one in live), default=0)
            assert len(live) - count >= floor, f"C25: {group} keeps {len(live) - count} of {floor}"
