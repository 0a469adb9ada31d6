"""What an event is about, whatever of it the event names.

``order.done`` names an order; it is about a lease, its request, their tenant, and
devices on a node too. Who follows the records learns what belongs together from the
events that made it, or from a state to start from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.quotas.quota import quota_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.state import State

__all__ = ["Named", "Names"]

#: Ids (as keys, in the order found) by what they are.
Named = dict[str, dict[str, None]]

#: Fields of events and inputs that hold an id, or several.
_FIELDS: dict[str, str] = {
    **{
        name: name
        for name in (
            "request", "lease", "order", "node", "device", "slice", "unit", "tenant", "project",
            "queue", "template", "reservation", "pool", "task", "mig_uuid", "quota", "licence",
            "book",
        )
    },
    "ask": "quota ask",
    "model_version": "compatibility",
    "from_node": "node",
    "to_node": "node",
    "units": "unit",
    "nodes": "node",
    "chosen": "node",
    "evicted": "lease",
    "evidence": "evidence",
    "parent": "quota",
    "about": "about",
    "by": "request",
}  # fmt: skip

#: What an alarm may be about, with something that belongs to it.
_LINKED = ("node", "device", "slice", "lease", "request", "order", "quota", "reservation")


class Names:
    """Remembers what belongs to what, from the records that go by."""

    def __init__(self) -> None:
        """Know of nothing."""
        #: (kind, id) -> what it belongs to, or is made of.
        self._links: dict[tuple[str, str], Named] = {}

    def know(self, state: State) -> None:
        """Learn what a state has, for records that come after it."""
        for quota in state.quotas.values():
            self._link("quota", quota.name, quota=[quota.parent or ""])
        for node in state.nodes.values():
            self._link("node", node.name, pool=[node.pool])
        for device in state.devices.values():
            self._link("device", device.uuid, node=[device.node])
        for item in state.slices.values():
            self._link("slice", item.id, device=[item.device], mig_uuid=[item.mig_uuid])
        for request in state.requests.values():
            self._request(request.id, request.tenant, request.project, request.queue)
        for lease in state.leases.values():
            self._lease(lease.id, lease.request, [_plain(part) for part in lease.parts.values()])
        for order in state.orders.values():
            self._order(_plain(order) | {"order": order.id})

    def take(self, event: Mapping[str, Any]) -> Named:
        """Learn from an event; return all that it is about."""
        kind = event["type"]
        if kind == "quota.applied":
            name = quota_name(event["tenant"], event.get("project"))
            above = event.get("parent") or (event["tenant"] if event.get("project") else "")
            self._link("quota", name, quota=[above])
        elif kind == "node.registered":
            self._link("node", event["node"], pool=[event["pool"]])
        elif kind == "device.discovered":
            self._link("device", event["device"], node=[event["node"]])
        elif kind in ("slice.ordered", "slice.present"):
            mig = event.get("mig_uuid", "")
            self._link("slice", event["slice"], device=[event["device"]], mig_uuid=[mig])
        elif kind == "request.received":
            self._request(event["request"], event["tenant"], event.get("project"), event["queue"])
        elif kind == "lease.granted":
            self._lease(event["lease"], event["request"], event["parts"])
        elif kind == "order.issued":
            self._order(event)
        elif kind == "reservation.applied":
            self._link("reservation", event["reservation"], tenant=[event["tenant"]])
        return self.of(event)

    def of(self, fields: Mapping[str, Any]) -> Named:
        """Return what the fields of an event or input are about, by what is known."""
        found: Named = {}
        for field, kind in _FIELDS.items():
            value = fields.get(field)
            if isinstance(value, str):
                self._add(found, kind, value)
            elif isinstance(value, (list, tuple)):
                for one in value:
                    if isinstance(one, str):
                        self._add(found, kind, one)
        for part in fields.get("parts") or ():
            self._add(found, "node", part["node"])
            for unit in part["units"]:
                self._add(found, "unit", unit)
        need = fields.get("need") or fields.get("ask")
        if isinstance(need, dict) and isinstance(need.get("pool"), str):
            self._add(found, "pool", need["pool"])
        if "tenant" in found and isinstance(fields.get("tenant"), str):
            self._add(found, "quota", self._quota_of(fields["tenant"], fields.get("project")))
        return found

    def _add(self, found: Named, kind: str, name: str) -> None:
        """Add an id and what it belongs to; a unit is a slice when one is known, else a device."""
        if kind == "unit":
            kind = "slice" if ("slice", name) in self._links else "device"
        elif kind == "about":
            kind = next((one for one in _LINKED if (one, name) in self._links), kind)
        if not name or name in found.get(kind, ()):
            return
        found.setdefault(kind, {})[name] = None
        for other, names in self._links.get((kind, name), {}).items():
            for one in names:
                self._add(found, other, one)

    # -- what belongs to what ------------------------------------------------

    def _link(self, kind: str, name: str, **others: Iterable[str]) -> None:
        self._links[kind, name] = {
            other: dict.fromkeys(one for one in names if one) for other, names in others.items()
        }

    def _request(self, name: str, tenant: str, project: str | None, queue: str) -> None:
        quota = self._quota_of(tenant, project)
        projects = [project] if project else []
        self._link("request", name, tenant=[tenant], project=projects, queue=[queue], quota=[quota])

    def _quota_of(self, tenant: str, project: str | None) -> str:
        """Return where it counts: a project without a quota of its own counts at its tenant's."""
        name = quota_name(tenant, project)
        return name if ("quota", name) in self._links else tenant

    def _lease(self, name: str, request: str, parts: Iterable[Mapping[str, Any]]) -> None:
        parts = list(parts)
        nodes = [part["node"] for part in parts]
        units = [unit for part in parts for unit in part["units"]]
        self._link("lease", name, request=[request], node=nodes, unit=units)

    def _order(self, order: Mapping[str, Any]) -> None:
        asked = [order["request"]] if order.get("request") else []
        self._link(
            "order", order["order"], lease=[order.get("lease", "")], request=asked,
            node=[order["node"]], unit=list(order["units"]),
        )  # fmt: skip


def _plain(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of any table
    """Return the fields of a row by name."""
    return {name: getattr(row, name) for name in row.__slots__}
