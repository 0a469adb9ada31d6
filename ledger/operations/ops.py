"""The operations report: resources, tasks, governance, and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import permyriad, time_text
from ledger.metering.report import DENOMINATORS
from ledger.operations.causes import FREE, KINDS, USED, WASTE
from ledger.operations.charts import Bars, Stacked
from ledger.operations.measure import Column, Metric, Part, Report, Section
from ledger.percentile import percentile
from schemas.codes import CODES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from ledger.operations.gather import Gathered

__all__ = ["governance", "money_of", "ops_report", "resources", "tasks", "waste"]

_NO_PRICES = "no price book is on record, and none was given"


def ops_report(found: Gathered) -> Report:
    """Return the report of a window."""
    return Report(
        "ops",
        "Operations report",
        found.reading,
        (
            waste(found),
            resources(found),
            _hardware(found),
            tasks(found),
            _ends(found),
            _refusals(found),
            _tenants(found),
            governance(found),
            _authors(found),
        ),
        money_of(found),
    )


def money_of(found: Gathered) -> dict[str, object]:
    """Return what JSON says of who pays, and of the prices where there are any."""
    prices, payers = found.time.prices, found.time.policy.plain()
    if prices is None:
        return payers
    book = prices.book
    return {
        **payers, "currency": book.currency, "price_book": book.book,
        "price_book_sha256": prices.sha256,
    }  # fmt: skip


# -- where the time went ---------------------------------------------------------


def waste(found: Gathered) -> Section:
    """Return every kind of time in GPU-hours and money: together they are what was there."""
    time = found.time
    present, money = time.present_milli_us, time.money()
    metrics: list[Metric] = []
    for name, kind in KINDS.items():
        metrics.append(
            Metric(
                f"time.{name}", kind.title, kind.formula, time.kinds[name], "milli_us", present,
                "present", "read",
            )
        )  # fmt: skip
    metrics.append(
        Metric(
            "time.waste", "all but used and free", " + ".join(WASTE), time.waste_milli_us,
            "milli_us", present, "present", "read",
        )
    )  # fmt: skip
    currency = "" if time.prices is None else time.prices.book.currency
    for name, kind in KINDS.items():
        metrics.append(
            Metric(
                f"money.{name}", f"{kind.title}, {currency or 'money'}",
                f"({kind.formula}) x the price agreed for the hardware at that time",
                None if money is None else money[name], "nanos",
                None if money is None else sum(money.values()), f"{currency} present".strip(),
                "read", _NO_PRICES,
            )
        )  # fmt: skip
    if money is None:
        # One line for all that is missing: the figures of time stand above.
        metrics = [one for one in metrics if not one.name.startswith("money.")]
        metrics.append(
            Metric(
                "money", "money", "time x price", None, "nanos", basis="read", missing=_NO_PRICES
            )
        )
    total = time.total()
    equal = "=" if present == total.capacity_milli_us else "IS NOT"
    words = (
        f"used + free + lost by cause: {present:,} {equal} {total.capacity_milli_us:,}"
        " thousandths of devices x microseconds that were present"
    )
    return Section("time", "Where the time went", "resource", (words,), tuple(metrics),
                   charts=tuple(_pictures(found)))  # fmt: skip


def _pictures(found: Gathered) -> Iterator[Stacked | Bars]:
    time = found.time
    bars = range(len(time.bounds) - 1)
    parts = tuple(
        Part(KINDS[name].title, tuple(time.bars[at, name] for at in bars)) for name in KINDS
    )
    labels = tuple(time_text(time.bounds[at])[:16].replace("T", " ") for at in bars)
    yield Stacked("Time of what was there, by kind", labels, parts, "milli_us")
    lost = [(KINDS[name].title, time.kinds[name]) for name in WASTE if time.kinds[name]]
    if lost:
        yield Bars("Time lost, by cause", tuple(lost), "milli_us")


# -- resources -------------------------------------------------------------------


def resources(found: Gathered) -> Section:
    """Return utilisation, each of a denominator with a name, and what became of the hardware."""
    time, register = found.time, found.register
    total = time.total()
    wholes = total.denominators()
    metrics = [
        Metric(
            f"utilisation.{part}.{whole}", f"{part} of {whole}",
            f"{_NUMERATORS[part]} / {DENOMINATORS[whole]}", amount, "milli_us", wholes[whole],
            whole, "read",
        )
        for whole in wholes
        for part, amount in total.numerators().items()
    ]  # fmt: skip
    metrics += [
        Metric(
            "used.measured", "measured use of what was allocated",
            "mean busy thousandths of the leases' units x measured time", total.used_milli_us,
            "milli_us", total.parts["allocated"], "allocated", "read",
            "no samples of use are in the ledger",
        ),
        Metric(
            "memory.delivered", "device memory delivered as its holder's own",
            "MiB of leased whole devices and slices x time / MiB reserved for leases x time",
            total.delivered_mib_us, "mib_us", total.reserved_mib_us, "reserved", "read",
        ),
        Metric("devices", "devices present", "devices present at some time", time.devices,
               basis="read"),
    ]  # fmt: skip
    metrics += [
        _counted(found, name, title, kind)
        for name, title, kind in (
            ("nodes.silent", "nodes that fell silent", "node silent"),
            ("nodes.lost", "nodes that were given up", "node lost"),
            ("devices.unhealthy", "devices that became unhealthy", "device unhealthy"),
            ("devices.gone", "devices that went away", "device gone"),
            ("slices.made", "slices that were made or found", "slice.present"),
            ("partitions.done", "changes of partitions that were done", "partition done"),
            ("partitions.failed", "changes of partitions that failed", "partition failed"),
        )
    ]
    metrics += _times(
        "partitions.took", "a change of partitions took", register.partitions_us,
        "from the order to the node's answer",
    )  # fmt: skip
    return Section("resources", "Resources", "resource", metrics=tuple(metrics))


_NUMERATORS = {
    "allocated": "under a lease",
    "busy": "under a lease and seen running",
    "successful": "of leases that completed",
}


def _counted(
    found: Gathered, name: str, title: str, kind: str, of: tuple[str, int] | None = None
) -> Metric:
    """Return how often a kind of thing is on record."""
    return Metric(
        name, title, f"records of {kind}", found.register.counts[kind], "count",
        None if of is None else of[1], "" if of is None else of[0],
    )  # fmt: skip


def _times(name: str, title: str, values: list[int], formula: str) -> Iterator[Metric]:
    """Yield the median, the 95th per cent and the longest of durations."""
    for ending, words, per_cent in (("p50", "half of the time", 50), ("p95", "in 95 %", 95),
                                    ("max", "at most", 100)):  # fmt: skip
        yield Metric(
            f"{name}.{ending}", f"{title}, {words}",
            f"nearest rank {per_cent} % of {len(values)} durations {formula}",
            percentile(values, per_cent), "us", missing="none in the window",
        )  # fmt: skip


def _hardware(found: Gathered) -> Section:
    """Return each kind of hardware of each pool."""
    rows = []
    for (pool, model), kinds in sorted(found.time.of_hardware.items()):
        present = sum(kinds.values())
        rows.append(
            {
                "pool": pool,
                "model": model,
                "present": present,
                "used": kinds[USED],
                "free": kinds[FREE],
                "lost": present - kinds[USED] - kinds[FREE],
                "used_share": permyriad(kinds[USED], present),
            }
        )
    columns = (
        Column("pool", "pool"),
        Column("model", "model"),
        Column("present", "present", "milli_us", "present time x capacity"),
        Column("used", "used", "milli_us", KINDS[USED].formula),
        Column("free", "free", "milli_us", KINDS[FREE].formula),
        Column("lost", "lost", "milli_us", "present - used - free"),
        Column("used_share", "used of present", "permyriad", "used / present"),
    )
    return Section(
        "hardware", "By hardware", "resource", columns=columns, rows=tuple(rows), basis="read"
    )


# -- tasks -----------------------------------------------------------------------


def tasks(found: Gathered) -> Section:
    """Return how requests fared."""
    one, total = found.tasks, found.time.total()
    counts = one.counts
    asked = counts["received"] + counts["rejected"]
    ended = one.ends.total()
    metrics = [
        Metric("requests.asked", "requests asked", "let in + refused", asked),
        Metric("requests.refused", "refused", "request.rejected", counts["rejected"], "count",
               asked, "asked"),
        Metric("requests.granted", "granted for the first time", "first lease.granted of a request",
               counts["granted"], "count", counts["received"], "let in"),
        Metric("requests.completed", "ended completed", "request.ended with completed",
               one.ends["completed"], "count", ended, "ended"),
        Metric("requests.failed", "ended failed", "request.ended with failed", one.ends["failed"],
               "count", ended, "ended"),
        Metric("requests.waiting", "waiting at the end", "let in, no lease, not over",
               counts["waiting"]),
        Metric("requests.running", "with a lease at the end", "lease not over", counts["running"]),
        Metric("leases.interrupted", "leases interrupted",
               "lease.ended for a reason that was not the task's own or its user's",
               one.interruptions.total(), "count", counts["leases_ended"], "leases ended"),
        Metric("leases.again", "interrupted and granted again", "lease.granted after interruption",
               counts["granted_again"]),
        Metric("work.interrupted", "time under leases that were interrupted",
               "allocated time of leases whose end was an interruption", total.ends["interrupted"],
               "milli_us", total.parts["allocated"], "allocated", "read"),
        Metric("work.failed", "time under leases that failed",
               "allocated time of leases whose task failed", total.ends["failed"], "milli_us",
               total.parts["allocated"], "allocated", "read"),
    ]  # fmt: skip
    metrics += _times("wait", "waited for the first lease", one.waits_us,
                      "from request.received to its first lease.granted")  # fmt: skip
    metrics += _times("start", "from the grant until the task was seen", one.starts_us,
                      "from lease.granted to its first lease.started")  # fmt: skip
    metrics += _times("repair", "from an interruption until granted again", one.repairs_us,
                      "from lease.ended to the next lease.granted")  # fmt: skip
    return Section("tasks", "Tasks", "task", metrics=tuple(metrics))


def _counts(name: str, title: str, group: str, heading: str, counts: Counter[str]) -> Section:
    rows = tuple(
        {"name": key, "meaning": CODES[key].meaning if key in CODES else "", "count": count}
        for key, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    )
    columns = (
        Column("name", heading),
        Column("count", "how often", "count", f"records by {heading}"),
        Column("meaning", "meaning"),
    )
    return Section(name, title, group, columns=columns, rows=rows)


def _ends(found: Gathered) -> Section:
    """Return how requests ended, and what took leases away."""
    counts = found.tasks.ends + found.tasks.interruptions
    rows = tuple(
        {
            "name": name,
            "requests": found.tasks.ends[name],
            "leases": found.tasks.interruptions[name],
        }
        for name in sorted(counts, key=lambda one: (-counts[one], one))
    )
    columns = (
        Column("name", "how"),
        Column("requests", "requests ended", "count", "request.ended by how"),
        Column("leases", "leases interrupted", "count", "lease.ended by reason"),
    )
    return Section("ends", "Ends", "task", columns=columns, rows=rows)


def _refusals(found: Gathered) -> Section:
    return _counts("refusals", "Refused, by code", "task", "code", found.tasks.refused)


def _tenants(found: Gathered) -> Section:
    """Return what each tenant asked and had."""
    time = found.time
    money = time.tenant_money()
    names = sorted(found.tasks.by_tenant.keys() | time.by_tenant.keys() | time.charged.keys())
    rows = []
    for name in names:
        kinds, counts = time.by_tenant.get(name), found.tasks.by_tenant.get(name)
        rows.append(
            {
                "tenant": name,
                **{key: counts[key] if counts else 0 for key in ("received", "granted", "refused")},
                "allocated": sum(kinds.values()) if kinds else 0,
                "idle_held": kinds["idle-held"] if kinds else 0,
                "fragmentation": kinds["fragmentation"] if kinds else 0,
                "charged": time.charged[name],
                "money": None if money is None else money.get(name, 0),
            }
        )
    columns = (
        Column("tenant", "tenant"),
        Column("received", "let in", "count", "request.received"),
        Column("granted", "granted", "count", "first lease.granted of a request"),
        Column("refused", "refused", "count", "request.rejected"),
        Column("allocated", "allocated", "milli_us", "time under its leases"),
        Column("idle_held", "idle held", "milli_us", KINDS["idle-held"].formula),
        Column("fragmentation", "fragmentation", "milli_us", KINDS["fragmentation"].formula),
        Column("charged", "charged", "milli_us", f"what policy {time.policy.name} lets it pay"),
        Column("money", "money", "nanos", "charged x price agreed, as on the bill"),
    )
    return Section("tenants", "Tenants", "task", columns=columns, rows=tuple(rows))


# -- governance ------------------------------------------------------------------


def governance(found: Gathered) -> Section:
    """Return what is on record of who decided what, and whether it was as it must be."""
    register = found.register
    counts = register.counts
    records = sum(counts[f"record {verdict}"] for verdict in ("claim", "effective", "void"))
    answered = counts["quota.answered"]
    metrics = [
        Metric("records", "records of the ledger", "claims + decisions", records),
        _counted(found, "records.effective", "decisions in force", "record effective",
                 ("records", records)),
        _counted(found, "records.void", "records of a writer that had lost its partition",
                 "record void", ("records", records)),
        _counted(found, "claims", "times that a worker took a partition", "record claim"),
        _counted(found, "policies", "changes of policy", "policy"),
        _counted(found, "policies.reasoned", "changes of policy with author and reason",
                 "policy with author and reason", ("changes", counts["policy"])),
        Metric("authors", "people who set something", "distinct authors", len(register.authors)),
        _counted(found, "quotas.asked", "quota increases asked for", "quota.asked"),
        _counted(found, "quotas.second", "quota increases answered by a second person",
                 "quota answered by a second person", ("answered", answered)),
        _counted(found, "refused", "told no, with a code", "refused with a code"),
        _counted(found, "cleans", "cleanings ordered", "clean ordered"),
        _counted(found, "cleans.proved", "proved clean", "clean done",
                 ("cleanings ordered", counts["clean ordered"])),
        _counted(found, "cleans.failed", "not proved clean", "clean failed",
                 ("cleanings ordered", counts["clean ordered"])),
        Metric("quarantined", "devices and slices put in quarantine", "quarantined events",
               counts["device.quarantined"] + counts["slice.quarantined"]),
        _counted(found, "cleared", "devices cleared by an operator", "device.cleared"),
        Metric("alarms", "alarms raised", "alarm.raised", register.alarms.total()),
    ]  # fmt: skip
    metrics += _times("clean", "from the order to clean until it was proved", register.cleans_us,
                      "from order.issued to order.done")  # fmt: skip
    return Section("governance", "Governance", "governance", metrics=tuple(metrics))


def _authors(found: Gathered) -> Section:
    rows = tuple(
        {"author": name, "count": count}
        for name, count in sorted(found.register.authors.items(), key=lambda one: (-one[1], one[0]))
    )
    columns = (
        Column("author", "who"),
        Column("count", "acts on record", "count", "events with this author"),
    )
    return Section("authors", "Who set what", "governance", columns=columns, rows=rows)
