"""Every outcome the ledger can give, in one ordered list.

The list is ordered by precedence: when several rules would refuse an input, the
code that stands first is given. Numbers are for ever: a code that goes out of
use keeps its number. A *transient* no may become a yes without the requester
changing anything; a *final* no will not (DESIGN 1.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CODES", "Code", "Kind"]


class Kind(StrEnum):
    """What a code means to the one who asked."""

    YES = "yes"
    TRANSIENT = "transient"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Code:
    """One outcome: its stable number, its kind, and what it says."""

    name: str
    number: int
    kind: Kind
    meaning: str


_YES = (
    ("granted", 1, "devices were leased"),
    ("queued", 2, "waits; the reason code and its numbers stand beside it"),
    ("applied", 3, "the policy is in force from this record on"),
    ("cancelled", 4, "the request ended before it was granted"),
    ("stopping", 5, "the lease ends as soon as its nodes have stopped the task"),
    ("released", 6, "the lease has ended; its devices are being cleaned"),
    ("observed", 7, "the observation changed the state"),
    ("unchanged", 8, "nothing to change"),
    ("reserved", 10, "a place is kept; granted as soon as all of it is free and clean"),
    ("duplicate", 9, "same id and same content as before: same answer"),
)
_FINAL = (
    ("empty_value", 100, "the record carries no data"),
    ("too_large", 101, "the record is larger than the limit"),
    ("not_utf8", 102, "the data is not UTF-8"),
    ("not_json", 103, "the data is not JSON"),
    ("not_an_object", 104, "the data is not a JSON object"),
    ("too_deep", 105, "the data is nested deeper than the limit"),
    ("duplicate_key", 106, "an object names one key twice"),
    ("number_out_of_range", 107, "a number is not exact in every JSON reader"),
    ("bad_envelope", 108, "the CloudEvents attributes are missing or wrong"),
    ("bad_key", 109, "the record's key is not the name of a cell"),
    ("unknown_type", 110, "this topic takes no record of that type"),
    ("unknown_version", 111, "the type is known, its version is not"),
    ("bad_field", 112, "a field is missing, unknown, or outside its limits"),
    ("unknown_cell", 120, "no policy has created that cell"),
    ("id_conflict", 121, "the id was used before with other content"),
    ("unknown_tenant", 130, "the tenant has no quota record"),
    ("unknown_template", 170, "there is no such template"),
    ("unknown_queue", 131, "there is no such queue"),
    ("unknown_pool", 132, "there is no such pool"),
    ("unknown_request", 133, "there is no such request"),
    ("unknown_lease", 134, "there is no such lease"),
    ("unknown_node", 135, "there is no such node"),
    ("unknown_device", 136, "there is no such device"),
    ("unknown_order", 137, "there is no such order"),
    ("unknown_parent", 138, "there is no such quota above"),
    ("unknown_ask", 139, "no quota increase of that id waits for an answer"),
    ("unknown_reservation", 180, "there is no such reservation"),
    ("not_owner", 140, "the record's source is not the one that made the request"),
    ("not_admitted", 145, "the queue takes no requests of the tenant"),
    ("template_requires", 171, "its template wants the request to say this field itself"),
    ("template_forbids", 172, "its template does not let a request go so far"),
    ("pool_refuses", 147, "the pool is not for the tenant, or not for the delivery mode"),
    ("same_person", 146, "who asked for a quota may not answer it: another person does"),
    ("wrong_node", 141, "the record is not from the node concerned"),
    ("wrong_agent", 142, "another agent already speaks for this node"),
    ("stale_incarnation", 143, "the node has restarted since"),
    ("duplicate_device", 144, "the device is present on another node"),
    ("already_ended", 150, "the request has already ended"),
    ("already_released", 151, "the lease has already ended; nothing is given back twice"),
    ("already_answered", 152, "the order was answered or given up before"),
    ("not_quarantined", 153, "the device is not in quarantine"),
    ("illegal_transition", 154, "the lifecycle has no such edge"),
    ("not_partitionable", 158, "no MIG mode, no profiles reported, or its node is away"),
    ("not_a_layout", 159, "the profiles have no place together on the device"),
    (
        "price_fixed",
        167,
        "what is on record of a price book stays: add a price with a later valid_from",
    ),
    ("price_backdated", 168, "what has a price already gets a new one from now on only"),
    ("quota_cycle", 155, "a quota cannot be above itself"),
    ("quota_too_deep", 185, "there are as many quotas above one another as there may be"),
    ("exceeds_parent", 156, "the quotas below would have more than the one above them (Q3)"),
    ("still_in_use", 157, "requests count against it"),
    ("exceeds_queue_limit", 160, "larger than the largest request of the queue"),
    ("exceeds_quota", 161, "larger than the tenant's whole quota: it could never run"),
    ("exceeds_max_run", 162, "longer than the queue lets a lease run"),
    ("not_reserved_for", 181, "the reservation is another tenant's"),
    ("exceeds_reservation", 182, "more, or other, or longer than what the reservation holds"),
    ("window_past", 183, "the time to be reserved has passed"),
    ("too_many_reservations", 184, "the cell has as many reservations as it may"),
    ("needs_max_run", 163, "the quota has a budget of GPU-hours: state a longest run time"),
    ("unknown_licence", 148, "there is no such licence"),
    ("exceeds_licences", 164, "more of a licence than there is: it could never run"),
    ("no_route", 166, "the pool does not say how it serves the service class"),
    ("unknown_vgpu_type", 149, "no device offers such vGPUs"),
    ("incompatible", 165, "what it runs does not run on such devices, drivers or frameworks"),
)
_TRANSIENT = (
    ("reservation_over", 216, "the reservation that the request names is over"),
    ("reservation_not_open", 215, "the reservation that the request names has not begun"),
    ("licences_in_use", 211, "the licences it needs are in use"),
    ("quota_in_use", 200, "the quota is held by other leases, or nobody lends what is missing"),
    ("budget_spent", 205, "the quota's GPU-hours of this period are spent"),
    ("behind_in_queue", 201, "an earlier request of the strict queue waits for the same kind"),
    ("partition_pending", 207, "a partition change is pending a reboot"),
    ("no_such_hardware", 202, "no device in the cell has what is asked"),
    ("no_capacity", 203, "not enough free devices, counted place by place"),
    ("no_fresh_evidence", 212, "no fresh evidence that a node with room is reached well enough"),
    ("planned_for_another", 206, "what is free is planned or kept for another"),
    ("no_beside", 204, "devices are free, their nodes' CPU or memory is not"),
    ("constraints_unmet", 209, "enough is free, but not where what the request asks is met"),
    ("instance_busy", 208, "an instance that the layout has no place for is in use"),
    ("not_drained", 213, "its node is in service: it has to be draining or in maintenance first"),
    ("device_busy", 214, "something of the device is leased, kept for somebody, or being changed"),
    ("slices_left", 217, "MIG slices are left on the device: an empty layout takes them away"),
    ("mode_changing", 218, "the MIG mode of a device there is being changed"),
    ("wait_expired", 210, "the longest wait has passed"),
)

#: All codes by name, in order of precedence.
CODES: dict[str, Code] = {
    name: Code(name, number, kind, meaning)
    for kind, rows in ((Kind.YES, _YES), (Kind.FINAL, _FINAL), (Kind.TRANSIENT, _TRANSIENT))
    for name, number, meaning in rows
}
