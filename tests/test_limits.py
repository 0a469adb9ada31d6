"""One decision is one record of bounded size; what does not fit goes on with the next."""

from __future__ import annotations

from ledger.core.digest import digest
from ledger.core.invariants import check
from ledger.core.limits import LEASE_WEIGHT, MAX_DUE, MAX_GIVEN
from ledger.log.port import MAX_RECORD_BYTES
from ledger.testing import CoreDriver

#: More one-thousandth shares than one pass may give.
WAITING = MAX_GIVEN // (LEASE_WEIGHT + 1) + 500


def _crowd(*, max_wait_s: int | None = None) -> CoreDriver:
    """Return a cell in which a quota of one thousandth holds a crowd back."""
    driver = CoreDriver()
    driver.pool()
    driver.queue()
    driver.quota(nominal_gpu_milli=1)
    devices = [{"uuid": f"GPU-{n}", "model": "M", "memory_mib": 1000} for n in range(8)]
    driver.node("n1", devices)
    for number in range(WAITING + 1):
        driver.submit(
            f"r{number}",
            ask={"mode": "share", "gpu_milli": 1},
            max_wait_s=max_wait_s,
        )
    assert WAITING == len(driver.state.index.waiting)
    return driver


def test_a_pass_is_cut_and_goes_on() -> None:
    """A quota raised for thousands leads to several records, each within the log's limit."""
    driver = _crowd()

    raised = driver.quota(nominal_gpu_milli=1_000_000)

    cut = driver.state.pass_cut
    assert 0 == driver.state.index.deadlines.next_due_us(driver.state)
    assert {"type": "pass.cut"} == raised.events[-1]
    assert len(driver.records[-1]) < MAX_RECORD_BYTES

    driver.tick()

    assert (True, False) == (cut, driver.state.pass_cut)
    assert 0 == len(driver.state.index.waiting)
    assert [] == check(driver.state)
    assert driver.digest() == digest(driver.replayed().cells)


def test_deadlines_fire_by_the_thousand() -> None:
    """Thousands of longest waits that pass at once are several records; none is forgotten."""
    driver = _crowd(max_wait_s=10)

    driver.tick(driver.now_us + 11_000_000)

    assert WAITING - MAX_DUE == len(driver.state.index.waiting)
    while driver.state.index.waiting.shapes:
        driver.tick()
    assert 1 == len(driver.state.requests)
