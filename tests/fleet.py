"""What the nodes of the world have: cards of all kinds, and what a driver makes of an order."""

from __future__ import annotations

from typing import Any

from ledger.testing import device, mig_slice

__all__ = ["LABELS", "NODES", "PARTED", "POOLS", "PROFILES", "SLICES", "UUIDS", "Cards", "fleet"]

NODES = ("n1", "n2", "n3", "n4")
UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-m", "GPU-x", "GPU-d", "GPU-e", "GPU-f", "GPU-g")
#: Cards that are partitioned on demand, and where each is at home.
PARTED = {"GPU-p": "n4", "GPU-r": "n2", "GPU-s": "n3"}
POOLS = {"n1": "main", "n2": "main", "n3": "side", "n4": "main"}
#: What a node says of where it is, and of its driver.
LABELS: dict[str, dict[str, Any]] = {
    "n1": {"labels": {"rack": "r1"}, "driver": "550.54"},
    "n2": {"labels": {"rack": "r1"}, "driver": "535.104"},
    "n3": {"labels": {"rack": "r2"}, "driver": "550.9"},
    "n4": {"labels": {"rack": "r3"}, "driver": "550.100"},
}
SLICES: tuple[list[dict[str, Any]], ...] = (
    [mig_slice("MIG-1", 1, 0), mig_slice("MIG-2", 2, 1), mig_slice("MIG-3", 3, 2)],
    [
        mig_slice("MIG-4", 4, 0, profile="3g.40gb", size=4, compute_slices=3, memory_mib=40_448),
        mig_slice("MIG-2", 2, 4),
    ],
    [mig_slice("MIG-1", 1, 0), mig_slice("MIG-9", 9, 0)],
    [],
)

#: Model -> profile -> size, compute, MiB, starts, most, as drivers report them.
PROFILES: dict[str, dict[str, tuple[int, int, int, tuple[int, ...], int]]] = {
    "H100": {
        "1g.10gb": (1, 1, 9_856, (0, 1, 2, 3, 4, 5, 6), 7),
        "2g.20gb": (2, 2, 20_096, (0, 2, 4), 3),
        "3g.40gb": (4, 3, 40_448, (0, 4), 2),
        "7g.80gb": (8, 7, 81_152, (0,), 1),
    },
    "A30": {
        "1g.6gb": (1, 1, 5_952, (0, 1, 2, 3), 4),
        "2g.12gb": (2, 2, 11_968, (0, 2), 2),
        "4g.24gb": (4, 4, 24_000, (0,), 1),
    },
}
_KINDS = {"GPU-p": "H100", "GPU-r": "H100", "GPU-s": "A30"}

_HOPPER = {"architecture": "hopper", "capability": "9.0"}
_AMPERE = {"architecture": "ampere", "capability": "8.6"}


def _vgpus(**types: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"type": name, "most": most, "memory_mib": mib} for name, (most, mib) in types.items()]


def _group(name: str, bus: int) -> dict[str, Any]:
    return {"iommu_group": name, "pci_address": f"0000:{bus:02d}:00.0"}


_FACTS: dict[str, dict[str, Any]] = {
    "GPU-a": {
        **_group("1", 1),
        "nvlink_domain": "l1",
        "encoder_sessions": 2,
        "decoder_sessions": 4,
        "vgpu_types": _vgpus(thirds=(3, 20_000), halves=(2, 40_000)),
    },
    "GPU-b": {**_group("1", 2), "nvlink_domain": "l1"},
    "GPU-f": {
        **_group("2", 3),
        "nvlink_domain": "l2",
        "vgpu_types": _vgpus(thirds=(3, 20_000), quarters=(4, 16_000)),
    },
    "GPU-g": {**_group("3", 4), "nvlink_domain": "l2", "encoder_sessions": 1},
    "GPU-c": {
        **_group("1", 1),
        "nvlink_domain": "l3",
        "vgpu_types": _vgpus(halves=(2, 40_000)),
    },
    "GPU-m": {},
    "GPU-x": {
        **_group("1", 1),
        "encoder_sessions": 4,
        "decoder_sessions": 4,
        "vgpu_types": _vgpus(small=(4, 6_000)),
    },
    "GPU-y": {**_group("1", 2)},
    "GPU-d": {**_group("7", 1), "nvlink_domain": "l1"},
    "GPU-e": {**_group("8", 2), "nvlink_domain": "l1", "encoder_sessions": 2},
}
_AT = {
    "n1": ("GPU-a", "GPU-b", "GPU-f", "GPU-g"),
    "n2": ("GPU-c", "GPU-m"),
    "n3": ("GPU-x", "GPU-y"),
    "n4": ("GPU-d", "GPU-e"),
}


def card(uuid: str) -> dict[str, Any]:
    """Return a card as it is when it is new."""
    if uuid in _KINDS:
        return _parted(uuid)
    facts: dict[str, Any] = _FACTS.get(uuid, {})
    if uuid in _AT["n3"]:
        return device(uuid, model="A10", memory_mib=24_000, **_AMPERE, **facts)
    if uuid == "GPU-m":
        return device(uuid, mig_enabled=True, compute_slices=7, slices=SLICES[0], **_HOPPER)
    return device(uuid, **_HOPPER, **facts)


def _parted(uuid: str) -> dict[str, Any]:
    model = _KINDS[uuid]
    profiles = [
        {
            "profile": name,
            "size": size,
            "compute_slices": compute,
            "memory_mib": mib,
            "starts": list(starts),
            "most": most,
        }
        for name, (size, compute, mib, starts, most) in PROFILES[model].items()
    ]
    a30 = {"model": "A30", "memory_mib": 24_576, "compute_slices": 4, **_AMPERE}
    more = a30 if model == "A30" else {"compute_slices": 7, **_HOPPER}
    return device(uuid, mig_enabled=True, profiles=profiles, slices=[], **more)


def fleet() -> dict[str, dict[str, dict[str, Any]]]:
    """Return all cards as they are at the beginning, by node."""
    found = {node: {uuid: card(uuid) for uuid in uuids} for node, uuids in _AT.items()}
    for uuid, node in PARTED.items():
        found[node][uuid] = card(uuid)
    return found


class Cards:
    """The cards in the nodes, and a driver that makes and destroys slices on them.

    The driver refuses what cannot be, by its own arithmetic.
    """

    def __init__(self) -> None:
        """Put every card into its node."""
        self.of = fleet()
        self.made = 0
        #: Orders that were carried out, and what was made by each.
        self.carried: dict[str, list[dict[str, Any]]] = {}

    def find(self, uuid: str) -> dict[str, Any] | None:
        """Return the card, wherever it is."""
        return next((cards[uuid] for cards in self.of.values() if uuid in cards), None)

    def carry_out(self, node: str, order: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Change a card as an order says, once; return what was made, or None if it cannot be."""
        if order["order"] in self.carried:
            return self.carried[order["order"]]
        found = self.of[node].get(order["units"][0])
        if found is None or found.get("mig_pending"):
            return None
        made = self.carried[order["order"]] = []
        for step in order["steps"]:
            if step["do"] == "create":
                one = self.create(found, step["profile"], step["start"])
                if one is None:
                    return None
                made.append(one)
                continue
            left = [one for one in found["slices"] if one["mig_uuid"] != step["mig_uuid"]]
            if len(left) == len(found["slices"]):
                return None
            found["slices"] = left
        return made

    def create(self, found: dict[str, Any], profile: str, start: int) -> dict[str, Any] | None:
        """Make a slice, or none where there is no place for it."""
        kind = PROFILES.get(found["model"], {}).get(profile)
        if kind is None:
            return None
        size, compute, mib, starts, most = kind
        there = found["slices"]
        taken = {at for one in there for at in range(one["start"], one["start"] + one["size"])}
        alike = sum(one["profile"] == profile for one in there)
        used = sum(one["compute_slices"] for one in there)
        full = alike >= most or used + compute > found["compute_slices"]
        if full or start not in starts or taken & set(range(start, start + size)):
            return None
        self.made += 1
        number = 100 + self.made
        one = mig_slice(
            f"MIG-{number}", number, start, profile=profile, size=size, compute_slices=compute,
            memory_mib=mib,
        )  # fmt: skip
        found["slices"] = [*there, one]
        return one

    def forget_slices(self, node: str) -> None:
        """Let a restart take every slice that was made on demand, and settle its MIG mode."""
        for uuid in self.of[node].keys() & PARTED.keys():
            more = {"slices": [], "mig_enabled": True, "mig_pending": False}
            self.of[node][uuid] |= more
