"""Verdicts over readings with memory: what each XID means, and what time does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.health.rules import Limits, Memory, Seen, Struck, Verdict, judge
from collectors.health.xids import ACTIONS, XIDS, action_of, effect_of
from collectors.nvml.readings import Signs

SECOND = 1_000_000
LIMITS = Limits()


class Device:
    """A device over time; each look is a verdict."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.now_us = 0

    def look(
        self, health: Any = "healthy", *struck: Struck, after_s: int = 10, **signs: Any
    ) -> Verdict:
        """Judge it after some seconds, with these signs; without any it did not answer."""
        self.now_us += after_s * SECOND
        found = Signs("GPU-a", **signs) if signs else None
        seen = Seen(health, "as it was read", found, struck)
        self.memory, verdict = judge(self.memory, seen, self.now_us, LIMITS)
        return verdict


# -- the tables ---------------------------------------------------------------------------

#: XID -> what it ends and what the device needs, where the driver gives no verdict. Written
#: out, not asked of the code under test: NVIDIA's catalogue, and the plan's column of effects.
WITHOUT_VERDICT = {
    13: ("none", ""), 31: ("none", ""), 43: ("none", ""), 45: ("none", ""), 63: ("none", ""),
    92: ("none", ""), 121: ("none", ""), 137: ("none", ""), 154: ("none", ""), 157: ("none", ""),
    999: ("none", ""),
    94: ("scope", ""), 48: ("scope", "drain"),
    64: ("none", "drain"), 156: ("none", "drain"),
    74: ("linked", "drain"), 144: ("linked", "drain"), 150: ("linked", "drain"),
    46: ("device", "reset"), 62: ("device", "reset"), 79: ("device", "reset"),
    95: ("device", "reset"), 109: ("device", "reset"), 110: ("device", "reset"),
    119: ("device", "reset"), 120: ("device", "reset"), 136: ("device", "reset"),
    140: ("device", "reset"), 143: ("device", "reset"), 158: ("device", "reset"),
}  # fmt: skip


@pytest.mark.parametrize(("xid", "wanted"), WITHOUT_VERDICT.items())
def test_an_xid_without_the_drivers_verdict(xid: int, wanted: tuple[str, str]) -> None:
    """The table says what is over and what the device needs."""
    found = effect_of(xid, None)
    assert wanted == (found.ends, found.need)


@pytest.mark.parametrize(
    ("xid", "action", "ends"),
    [
        (109, 0, "none"), (119, 0, "none"), (94, 0, "scope"), (95, 0, "device"), (74, 0, "linked"),
        (13, 1, "device"), (94, 2, "device"), (13, 3, "linked"), (94, 3, "linked"),
        (94, 4, "scope"), (13, 4, "none"), (13, 5, "linked"), (13, 99, "device"),
    ],
)  # fmt: skip
def test_the_drivers_verdict_is_more_than_the_table(xid: int, action: int, ends: str) -> None:
    """What a device needs is the driver's to say; work that is over for sure is over."""
    found = effect_of(xid, action)
    assert (ends, "") == (found.ends, found.need)


def test_every_entry_of_the_tables_is_sound() -> None:
    """A text each, and a reset at once never without the end of the work."""
    for xid, known in XIDS.items():
        found = effect_of(xid, None)
        assert known.text
        assert found.need != "reset" or found.ends == "device"
    assert "none" == action_of(0).work
    assert "device" == action_of(max(ACTIONS) + 1).work


# -- what takes a device out of use ---------------------------------------------------------


@pytest.mark.parametrize(
    ("signs", "code", "reason"),
    {
        "the driver's verdict": (
            {"recovery_action": 2, "rows_pending": True},
            "recovery-action", "the driver asks to reboot the node",
        ),
        "a verdict that is not known": (
            {"recovery_action": 9}, "recovery-action", "the driver asks to take action 9",
        ),
        "a row that failed": (
            {"rows_failed": True, "rows_pending": True},
            "row-failed", "a row of memory could not be remapped",
        ),
        "a row that is pending": (
            {"rows_pending": True},
            "row-pending", "a row of memory is remapped at the next reset",
        ),
    }.values(),
)  # fmt: skip
def test_the_first_cause_is_the_reason(signs: dict[str, Any], code: str, reason: str) -> None:
    """The driver's verdict comes before what can be concluded."""
    verdict = Device().look(**signs)
    assert ("unhealthy", code, reason) == (verdict.health, verdict.code, verdict.reason)


def test_what_is_not_known_is_no_fault() -> None:
    """A device that tells nothing of its health is healthy as long as it can be read."""
    assert "healthy" == Device().look().health
    assert "healthy" == Device().look(temperature_c=None, uncorrected=None).health
    assert "unknown" == Device().look("unknown").health


def test_an_xid_waits_for_the_drivers_verdict_or_a_reset() -> None:
    """Unreadable when it struck: unhealthy; the driver asks for nothing afterwards: healthy."""
    device = Device()
    verdict = device.look("unknown", Struck(119))
    assert ("unhealthy", "needs-reset") == (verdict.health, verdict.code)
    assert ["xid-119"] == [one.code for one in verdict.faults]
    assert () == device.look("unknown").faults, "it is told once"
    assert "healthy" == device.look(recovery_action=0).health

    silent = Device()
    silent.look("healthy", Struck(48), uncorrected=1)
    assert "unhealthy" == silent.look(uncorrected=2).health
    assert "healthy" == silent.look(uncorrected=0).health, "its counters began anew"


def test_a_device_that_was_away_was_reset() -> None:
    """Off the bus and back again: what it needed is done."""
    device = Device()
    device.look("healthy", Struck(109), uncorrected=0)
    assert "unhealthy" == device.look(uncorrected=0).health
    assert "gone" == device.look("gone").health
    back = device.look(uncorrected=0)
    assert ("healthy", "gone") == (back.health, back.evidence["was"])


def test_a_verdict_of_the_driver_is_a_fault_once() -> None:
    """When it changes; with an XID in the same look the XID tells it."""
    device = Device()
    device.look(recovery_action=0)
    (fault,) = device.look(recovery_action=1).faults
    assert ("recovery-action-1", "device", {"before": 0}) == (
        fault.code, fault.ends, fault.evidence
    )  # fmt: skip
    assert () == device.look(recovery_action=1).faults
    assert ["recovery-action-2"] == [one.code for one in device.look(recovery_action=2).faults]
    other = Device()
    found = other.look("healthy", Struck(154), recovery_action=1).faults
    assert [("xid-154", "device")] == [(one.code, one.ends) for one in found]
    assert () == other.look(recovery_action=1).faults


# -- heat and errors -----------------------------------------------------------------------


def test_heat_has_to_last_and_has_to_be_over() -> None:
    """Half a minute too hot, a minute cool; what slows itself down for heat is too hot as well."""
    device = Device()
    hot, warm, cool = ({"temperature_c": at, "slowdown_c": 90} for at in (90, 86, 85))
    assert ["healthy"] * 3 == [device.look(**hot).health for _ in range(3)]
    assert "unhealthy" == device.look(**hot).health
    assert ["unhealthy"] * 20 == [device.look(**warm).health for _ in range(20)]
    assert ["unhealthy"] * 6 == [device.look(**cool).health for _ in range(6)]
    assert "healthy" == device.look(**cool).health
    slowed = Device()
    found = [slowed.look(clock_reasons=0x41, temperature_c=60).health for _ in range(4)]
    assert ["healthy"] * 3 + ["unhealthy"] == found
    short = Device()
    for at in (hot, hot, warm, hot, hot, warm):
        assert "healthy" == short.look(**at).health


def test_ecc_errors_since_before_the_first_look_are_noted() -> None:
    """How they came is not known: they are told, and nothing follows."""
    device = Device()
    (fault,) = device.look(uncorrected=3).faults
    assert "3 uncorrected ECC errors since the driver was loaded" == fault.reason
    assert "healthy" == device.look(uncorrected=3).health
    assert "unhealthy" == device.look(uncorrected=4).health


def test_errors_that_an_xid_has_told_of_are_not_told_twice() -> None:
    """A contained error counts as uncorrected: the device stays in use."""
    device = Device()
    device.look(uncorrected=0)
    verdict = device.look("healthy", Struck(94), uncorrected=1)
    assert ["xid-94"] == [one.code for one in verdict.faults]
    assert "healthy" == device.look(uncorrected=1).health


def test_corrected_errors_are_noted_by_the_hour() -> None:
    """A thousand within an hour; as many over a day are nothing."""
    device = Device()
    device.look(corrected=0)
    assert ["ecc-corrected"] == [one.code for one in device.look(corrected=1000).faults]
    assert () == device.look(corrected=1999).faults
    slow = Device()
    for count in range(0, 20_000, 900):
        assert () == slow.look(corrected=count, after_s=3600).faults


# -- flapping -------------------------------------------------------------------------------


def falls(device: Device) -> None:
    """Let it fall sick and be well again."""
    device.look("unhealthy")
    device.look()


def test_what_falls_often_is_held_back_longer_each_time() -> None:
    """A minute, two, four, an hour at most; after a quiet hour it is as any other."""
    device = Device()
    falls(device)
    falls(device)
    assert "healthy" == device.look().health
    for hold_s in (60, 120, 240, 480):
        device.look("unhealthy")
        assert "held-back" == device.look().code
        assert "unhealthy" == device.look(after_s=hold_s - 11).health
        back = device.look(after_s=11)
        assert ("healthy", hold_s) == (back.health, back.evidence["held_back_s"])
    for _ in range(12):
        falls(device)
    assert "unhealthy" == device.look(after_s=3500).health
    device.look(after_s=4000)
    assert "healthy" == device.look().health
    falls(device)
    assert "healthy" == device.look().health


def test_a_fall_while_it_is_held_back_counts() -> None:
    """Being held back is not being well: it starts again, and for longer."""
    device = Device()
    for _ in range(3):
        falls(device)
    assert "held-back" == device.look().code
    falls(device)
    assert "unhealthy" == device.look(after_s=100).health
    assert "healthy" == device.look(after_s=30).health


def test_what_cannot_be_read_is_not_held_back() -> None:
    """It may be the driver that was reloaded, or NVML that hung."""
    device = Device()
    for _ in range(10):
        device.look("unknown")
        assert "healthy" == device.look().health


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["healthy", "unhealthy", "unknown", "gone"]),
            st.sampled_from([None, 0, 1, 4, 9]),
            st.sampled_from([None, 13, 48, 94, 95, 119]),
            st.integers(0, 3),
            st.integers(1, 4000),
        ),
        max_size=30,
    )
)
def test_whatever_happens(history: list[tuple[Any, Any, Any, int, int]]) -> None:
    """The memory is bounded and survives a journal; what is sick is never called healthy.

    And a device that is left alone long enough is in use again.
    """
    device = Device()
    for health, action, xid, errors, after_s in history:
        struck = () if xid is None else (Struck(xid),)
        signs = {} if health in ("unknown", "gone") else {
            "recovery_action": action, "uncorrected": errors,
        }  # fmt: skip
        verdict = device.look(health, *struck, after_s=after_s, **signs)
        if health != "healthy" or action:
            assert "healthy" != verdict.health or (health == "healthy" and not signs)
        assert (health == "gone") == (verdict.health == "gone")
        assert len(device.memory.fell_us) <= 3_600
        plain = asdict(device.memory)
        pair = plain["corrected"]
        again = plain | {"corrected": None if pair is None else tuple(pair)}
        assert device.memory == Memory(**again)
    last = [device.look(recovery_action=0, uncorrected=0, after_s=3_700) for _ in range(3)]
    assert "healthy" == last[-1].health
