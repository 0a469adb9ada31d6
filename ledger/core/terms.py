"""What a request asks beside how much: of which devices, how far apart, with what in use.

Most requests state none of it: their `ledger.core.state.Need` has no terms, and nothing
here is looked at for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from schemas.limits import MAX_LISTED_TEXT

__all__ = [
    "FACTS",
    "Facts",
    "Terms",
    "facts_from_plain",
    "terms_from_plain",
    "to_plain",
    "told",
    "version",
]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a need (`schemas.asks.Where` says what they mean).

    ``apart`` is the task, as ``source#task``, of whose replicas no two may be in one
    failure domain; set where ``spread`` is.
    """

    architectures: tuple[str, ...] = ()
    capability: str = ""
    driver_min: str = ""
    spread: str = ""
    apart: str = ""
    same_nvlink_domain: bool = False
    licences: tuple[tuple[str, int], ...] = ()
    encoder_sessions: int = 0
    decoder_sessions: int = 0
    #: How devices are given, where it is another way than the need's mode.
    delivery: str = ""
    vgpu_type: str = ""
    vgpu_most: int = 0
    #: (the node from which the devices are used, P99 in µs at most, Mbit/s at least)
    remote: tuple[Any, ...] = ()
    #: By which rule of its pool the mode was chosen.
    route: str = ""

    @property
    def by_device(self) -> bool:
        """Say whether devices of one class and node are not alike for it."""
        media = self.encoder_sessions or self.decoder_sessions
        return self.same_nvlink_domain or bool(media or self.delivery)

    @property
    def tags(self) -> tuple[str, ...]:
        """What it may wait for beside devices and quota (`ledger.core.derived.waiting`)."""
        apart = (f"apart {self.apart}",) if self.apart else ()
        link = (f"link {self.remote[0]}",) if self.remote else ()
        return (*apart, *link, *(f"licence {name}" for name, _ in self.licences))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device reports beside its size (`schemas.observations.DeviceReport`)."""

    capability: str = ""
    nvlink_domain: str = ""
    encoder_sessions: int = 0
    decoder_sessions: int = 0
    iommu_group: str = ""
    pci_address: str = ""
    #: (memory in MiB, most at once, type)
    vgpu_types: tuple[tuple[int, int, str], ...] = ()


_TERMS = {one.name: one.default for one in fields(Terms)}
_FACTS = {one.name: one.default for one in fields(Facts)}
#: What a device reports beside its size, by name.
FACTS = frozenset(_FACTS)


def to_plain(item: Terms | Facts) -> dict[str, Any]:
    """Return terms or facts as an event carries them: what stands at its default is left out."""
    defaults = _TERMS if isinstance(item, Terms) else _FACTS
    found = {}
    for name, default in defaults.items():
        value = getattr(item, name)
        if value != default:
            found[name] = _plain(value)
    return found


def told(terms: Terms) -> dict[str, int | str | None]:
    """Return the terms as the numbers of an answer: one line of text or a number each."""
    found: dict[str, int | str | None] = {}
    for name, value in to_plain(terms).items():
        listed = isinstance(value, list)
        text = "|".join(map(_word, value)) if listed else value
        found[name] = text[:MAX_LISTED_TEXT] if isinstance(text, str) else int(text)
    return found


def terms_from_plain(plain: dict[str, Any]) -> Terms:
    """Return the terms that an event carries."""
    return Terms(**{name: _frozen(value) for name, value in plain.items()})


def facts_from_plain(plain: dict[str, Any]) -> Facts | None:
    """Return the facts that an event carries, None when it carries none."""
    said = {name: _frozen(plain[name]) for name in _FACTS if plain.get(name)}
    return Facts(**said) if said else None


def _word(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a field
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:  # noqa: ANN401 - any value of a field
    if isinstance(value, dict):
        return tuple(value[name] for name in sorted(value))
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def version(text: str) -> tuple[int, ...] | None:
    """Return the leading numbers of a version, without zeros at the end; None without any."""
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}", text)
    if found is None:
        return None
    parts = [int(part) for part in found[0].split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
