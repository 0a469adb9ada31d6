"""Run many seeds, on several processes; print what broke, and exit with 1 if anything did."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pprint import pformat

from tests.simulation.run import Failure, run, shrink


def main() -> int:
    """Read the arguments, run, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=2000, help="acts of one seed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--most", type=int, default=5, help="failures after which to stop")
    parser.add_argument("--shrink", action="store_true", help="make the failures small")
    given = parser.parse_args()
    failures: list[Failure] = []
    done = 0
    with ProcessPoolExecutor(given.workers) as pool:
        seeds = range(given.first, given.first + given.seeds)
        for future in as_completed([pool.submit(run, seed, given.steps) for seed in seeds]):
            if future.cancelled():
                continue
            done += 1
            failure = future.result()
            if failure is not None:
                failures.append(failure)
                _say(str(failure))
            elif done % 10 == 0:
                _say(f"{done} seeds of {given.steps} steps")
            if len(failures) >= given.most:
                pool.shutdown(cancel_futures=True)
                break
    for failure in failures if given.shrink else ():
        small = shrink(failure)
        _say(f"{small}\n{pformat(small.acts, width=110)}")
    _say(f"{done} seeds of {given.steps} steps, {len(failures)} failed")
    return 1 if failures else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
