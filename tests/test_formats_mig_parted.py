"""Layouts of mig-parted, read and written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ledger.formats.documents import NotTheFormat
from ledger.formats.mig_parted import read_mig_parted, write_mig_parted

#: Written for this test after the field names of mig-parted's README.
FILE = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.5gb:
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 7}
    - device-filter: ["0x233010DE", "0x233110DE:0x16C110DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  mixed:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2]
      mig-enabled: true
      mig-devices: {"1g.5gb+me": 1, "2g.10gb": 1, "3g.20gb": 1}
  empty:
    - {devices: [3], mig-enabled: true, mig-devices: {}}
"""


def entry(devices: Any, slices: dict[str, int] | None, ids: list[str] | None = None) -> Any:
    """Return an entry of a layout; ``slices`` None is MIG off."""
    found = {"devices": devices} if ids is None else {"devices": devices, "device_filter": ids}
    return {**found, "mig_enabled": slices is not None, "mig_devices": slices or {}}


def test_a_file_by_hand() -> None:
    """Layouts keep their names, their entries' order and their filters."""
    layouts, notes = read_mig_parted(FILE)

    assert {
        "all-disabled": [entry("all", None)],
        "all-1g.5gb": [
            entry("all", {"1g.5gb": 7}, ["0x20B010DE"]),
            entry("all", {"1g.10gb": 7}, ["0x233010DE", "0x233110DE:0x16C110DE"]),
        ],
        "mixed": [
            entry([0, 1], None),
            entry([2], {"1g.5gb+me": 1, "2g.10gb": 1, "3g.20gb": 1}),
        ],
        "empty": [entry([3], {})],
    } == layouts
    assert [] == notes


ENTRIES = st.builds(
    entry,
    st.one_of(st.just("all"), st.lists(st.integers(0, 255), max_size=4)),
    st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(["1g.5gb", "1g.10gb+me", "2g.10gb", "1c.3g.20gb", "7g.80gb"]),
            st.integers(1, 7),
            max_size=3,
        ),
    ),
    st.one_of(st.none(), st.lists(st.sampled_from(["0x20B010DE", "0x1:0x2"]), max_size=2)),
)


@given(st.dictionaries(st.text(min_size=1, max_size=9), st.lists(ENTRIES, min_size=1), min_size=1))
def test_ours_to_theirs_to_ours_is_the_same(layouts: Any) -> None:
    """Everything of a layout maps, whatever it is called."""
    assert (layouts, []) == read_mig_parted(write_mig_parted(layouts))


@pytest.mark.parametrize(
    ("change", "reason"),
    {
        "no version": ({"version": None}, "must be v1"),
        "another version": ({"version": "v2"}, "must be v1"),
        "no layouts": ({"mig-configs": {}}, "at least one layout"),
        "a layout without entries": ({"mig-configs": {"a": []}}, "at least one entry"),
        "a ConfigMap around it": ({"kind": "ConfigMap"}, "under data"),
    }.values(),
)
def test_what_mig_parted_refuses_of_a_file(change: dict[str, Any], reason: str) -> None:
    """The same faults are faults here."""
    with pytest.raises(NotTheFormat, match=reason):
        read_mig_parted(yaml.safe_dump({**yaml.safe_load(FILE), **change}))


@pytest.mark.parametrize(
    ("given_", "reason"),
    {
        "no devices": ({"mig-enabled": False}, "all, or a list"),
        "devices of another word": ({"devices": "some", "mig-enabled": False}, "all, or a list"),
        "an index of text": ({"devices": ["a"], "mig-enabled": False}, "from 0 to 255"),
        "no mig-enabled": ({"devices": "all"}, "is missing"),
        "on without slices": ({"devices": "all", "mig-enabled": True}, "is missing"),
        "off with slices": (
            {"devices": "all", "mig-enabled": False, "mig-devices": {"1g.5gb": 1}},
            "must be empty",
        ),
        "no slice at all": (
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 0}},
            "at least one slice",
        ),
        "a negative number": (
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": -1}},
            "quantity",
        ),
        "more than any device": (
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 65}},
            "no device has more",
        ),
        "half a slice": (
            {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": "1500m"}},
            "whole number",
        ),
    }.values(),
)
def test_what_mig_parted_refuses_of_an_entry(given_: dict[str, Any], reason: str) -> None:
    """The same faults are faults here, with the path of the entry."""
    with pytest.raises(NotTheFormat, match=reason) as error:
        read_mig_parted(yaml.safe_dump({"version": "v1", "mig-configs": {"x": [given_]}}))

    assert error.value.path.startswith("mig-configs.x[0]")


def test_half_a_layout_is_never_read() -> None:
    """A profile that the ledger cannot name leaves out its layout, and only that."""
    text = FILE.replace("1g.5gb+me", "1g.24gb*me") + "extra: 1\n"

    layouts, notes = read_mig_parted(text)

    assert ["all-disabled", "all-1g.5gb", "empty"] == list(layouts)
    assert ["the document: extra: no field of mig-parted", "mig-configs.mixed"] == [
        f"{note.path}: {note.reason}" if "extra" in note.reason else note.path for note in notes
    ]


def test_a_filter_that_fits_nothing_is_told() -> None:
    """mig-parted takes any text and then finds no device."""
    _, notes = read_mig_parted(FILE.replace('"0x20B010DE"', "A100"))

    assert ["'A100' is no PCI device id, so it fits no device"] == [note.reason for note in notes]
