"""What the options of ``gpuledger submit`` make of a request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ledger.cli.asked import Asked, Terms, request_in, request_of
from ledger.cli.common import Usage

#: Options -> the fields of the ask that they set.
ASKS: dict[str, tuple[Asked, Terms, dict[str, Any]]] = {
    "whole": (Asked(gpus=2, nodes=3), Terms(), {"mode": "whole", "count": 2, "nodes": 3}),
    "mig": (
        Asked(mig="1g.10gb", count=2),
        Terms(),
        {"mode": "mig", "profile": "1g.10gb", "count": 2},
    ),
    "mig by least": (
        Asked(compute_slices=2, gpu_memory_mib=9000),
        Terms(),
        {"mode": "mig", "compute_slices": 2, "memory_mib": 9000},
    ),
    "share": (
        Asked(share=250, gpu_memory_mib=4096),
        Terms(encoder_sessions=1, decoder_sessions=2),
        {
            "mode": "share",
            "gpu_milli": 250,
            "memory_mib": 4096,
            "encoder_sessions": 1,
            "decoder_sessions": 2,
        },
    ),
    "passthrough": (Asked(passthrough=4), Terms(), {"mode": "passthrough", "count": 4}),
    "vgpu": (Asked(vgpu="L40S-8Q"), Terms(), {"mode": "vgpu", "type": "L40S-8Q"}),
    "auto": (
        Asked(auto=500, gpu_memory_mib=8000, pool="p"),
        Terms(),
        {"mode": "auto", "gpu_milli": 500, "memory_mib": 8000, "pool": "p"},
    ),
    "constraints": (
        Asked(),
        Terms(
            architecture=["hopper"],
            capability="9.0",
            driver_min="550.54",
            spread="label:rack",
            same_nvlink_domain=True,
        ),
        {
            "mode": "whole",
            "architectures": ("hopper",),
            "capability": "9.0",
            "driver_min": "550.54",
            "spread": "label:rack",
            "same_nvlink_domain": True,
        },
    ),
    "remote": (
        Asked(gpus=1),
        Terms(remote_from="n1", remote_p99_us=40, remote_mbps=90_000),
        {
            "mode": "whole",
            "count": 1,
            "remote": {"from_node": "n1", "p99_us_max": 40, "bandwidth_mbps_min": 90_000},
        },
    ),
}


@pytest.mark.parametrize(("asked", "terms", "ask"), ASKS.values(), ids=ASKS.keys())
def test_options_are_the_ask(asked: Asked, terms: Terms, ask: dict[str, Any]) -> None:
    """Each option is one field, and nothing else is set."""
    options = {name: getattr(asked, name) for name in asked.__slots__}
    request = request_of(Asked(**options | {"tenant": "t", "queue": "q"}), terms, "r1", None)
    assert request.ask.model_dump(exclude_unset=True) == ask
    assert request.task.id == "r1"


def test_what_it_runs_and_uses() -> None:
    """Licences, runtime and service class stand beside the ask."""
    terms = Terms(
        licence=["cad=2"], runtime_model="m:1", framework="f:2", service_class="latency-sensitive"
    )
    request = request_of(Asked(tenant="t", queue="q"), terms, "r1", None)
    assert request.licences == {"cad": 2}
    assert request.runtime is not None
    assert (request.runtime.model, request.runtime.framework) == ("m:1", "f:2")
    assert request.service_class == "latency-sensitive"


WRONG: dict[str, tuple[Asked, Terms, str]] = {
    "two modes": (Asked(vgpu="x", share=1), Terms(), "two ways to ask"),
    "gpus of a vGPU": (Asked(vgpu="x", gpus=1), Terms(), "leave out --vgpu"),
    "more than a node has": (Asked(gpus=64), Terms(), "--gpus 8 --nodes 8"),
    "count of a share": (Asked(share=1, count=2), Terms(), "goes with --mig"),
    "a licence without count": (Asked(tenant="t"), Terms(licence=["cad"]), "--licence takes"),
    "no number": (Asked(tenant="t"), Terms(licence=["cad=two"]), "whole number"),
}


@pytest.mark.parametrize(("asked", "terms", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_go_together(asked: Asked, terms: Terms, says: str) -> None:
    """It is said which options."""
    with pytest.raises(Usage, match=re.escape(says)):
        request_of(asked, terms, "r1", None)


def test_what_stands_beside_a_file_is_named_as_it_is_typed() -> None:
    """By the option, whatever the request's own field is called."""
    beside = {"--max-wait": Asked(max_wait_s=5), "--type": Asked(kind="x"), "--gpus": Asked(gpus=1)}
    for option, asked in beside.items():
        with pytest.raises(Usage, match=rf"leave out {option}$"):
            request_of(asked, Terms(), "r1", Path("request.json"))
    with pytest.raises(Usage, match=r"leave out --spread$"):
        request_of(Asked(), Terms(spread="node"), "r1", Path("request.json"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is named, as a wrong use."""
    with pytest.raises(Usage, match=r"no\.json: No such file"):
        request_in(tmp_path / "no.json")
