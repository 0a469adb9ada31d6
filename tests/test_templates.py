"""Templates: defaults, what a request must say itself, what it may not ask; by code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from ledger.core.digest import load_fold, save_fold
from ledger.policy_files import read_site
from ledger.testing import CoreDriver, device
from schemas.catalogue import adapter
from schemas.requests import TaskType

OPERATOR = {"author": "ops", "reason": "test"}
EXAMPLES = Path(__file__).parent.parent / "examples" / "templates.yaml"


@pytest.fixture
def cell() -> CoreDriver:
    """A cell with eight devices on one node, two queues and no template."""
    cell = CoreDriver(check=True)
    cell.pool(), cell.queue(), cell.queue("night", max_run_s=7200), cell.quota()
    cell.node("n1", [device(f"GPU-{number}") for number in range(8)])
    return cell


def apply(cell: CoreDriver, template: str, task_type: str, **more: object) -> str:
    """Apply a template; return the code of the answer."""
    plain = {"template": template, "task_type": task_type, **more, **OPERATOR}
    return cell.feed("template.apply", plain, source="/operator").code


def ask(cell: CoreDriver, name: str, **plain: Any) -> dict[str, Any]:
    """Submit exactly these fields; return the event that let the request in, or refused it."""
    asked = {"tenant": "t", "task": {"id": name}, **plain}
    events = cell.feed("request.submit", asked, id=name).events
    (event,) = [one for one in events if one["type"] in ("request.received", "request.rejected")]
    return event


def refusal(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the code and the numbers of a refusal."""
    assert event["type"] == "request.rejected"
    return event["code"], event["numbers"]


def test_a_named_template_fills_in_what_is_not_said(cell: CoreDriver) -> None:
    """Every default stands where the request is silent, and the record says which template."""
    apply(
        cell, "big", "evaluation",
        defaults={
            "queue": "night", "ask": {"mode": "whole", "count": 2}, "priority": -5,
            "beside": {"cpu_milli": 0, "memory_mib": 0}, "preemptible": True, "max_wait_s": 60,
            "max_run_s": 3600, "expected_run_s": 1800, "retries": 2, "replicas_min": 3,
            "recovery": "requeue", "image": "img:1", "environment": "py311",
        },
    )  # fmt: skip
    event = ask(cell, "r1", template="big")

    assert {
        "type": "request.received",
        "request": "/team/a#r1",
        "tenant": "t",
        "queue": "night",
        "task": "r1",
        "task_type": "evaluation",
        "need": {"mode": "whole", "count": 2},
        "priority": -5,
        "preemptible": True,
        "wait_due_us": cell.now_us + 60_000_000,
        "max_run_us": 3_600_000_000,
        "expected_run_us": 1_800_000_000,
        "retries": 2,
        "replicas_min": 3,
        "recovery": "requeue",
        "template": "big",
        "image": "img:1",
        "environment": "py311",
    } == event
    assert "granted" == cell.state.requests["/team/a#r1"].state


def test_what_a_request_says_is_its_own(cell: CoreDriver) -> None:
    """Zero, none and a smaller ask are said too: no default goes over them."""
    defaults = {"queue": "q", "priority": 9, "max_run_s": 60, "ask": {"mode": "whole", "count": 4}}
    apply(cell, "any", "training", defaults=defaults)
    event = ask(
        cell, "r1", template="any", queue="night", priority=0, max_run_s=30, ask={"mode": "whole"}
    )

    assert ("night", 30_000_000) == (event["queue"], event["max_run_us"])
    assert {"mode": "whole"} == event["need"]
    assert "priority" not in event


def test_the_default_template_of_the_type_applies(cell: CoreDriver) -> None:
    """By task type, unless another is named; a new default takes the place of the old one."""
    apply(cell, "first", "training", default=True, defaults={"queue": "q"})
    apply(cell, "named", "training", defaults={"queue": "q", "priority": 1})
    assert "first" == ask(cell, "r1")["template"]
    assert "named" == ask(cell, "r2", template="named")["template"]

    apply(cell, "second", "training", default=True, defaults={"queue": "q", "priority": 2})
    assert ("second", 2) == (
        ask(cell, "r3")["template"],
        cell.state.requests["/team/a#r3"].priority,
    )
    other = ask(cell, "r4", task={"id": "r4", "type": "evaluation"}, queue="q")
    assert "template" not in other, "no template of that type: none applies"

    apply(cell, "second", "training", defaults={"queue": "q"})
    assert ("unknown_queue", {"queue": ""}) == refusal(ask(cell, "r5"))


def test_without_templates_nothing_changes(cell: CoreDriver) -> None:
    """A request that leaves out its ask gets one whole device, and no template is on record."""
    event = ask(cell, "r1", queue="q")

    assert ({"mode": "whole"}, False) == (event["need"], "template" in event)


REQUIRED = {
    "nothing said": ({}, {"field": "max_run_s", "also": "checkpoint"}),
    "the first only": ({"max_run_s": 60}, {"field": "checkpoint"}),
    "an empty text": ({"max_run_s": 60, "checkpoint": ""}, {"field": "checkpoint"}),
    "said to be none": ({"max_run_s": None, "checkpoint": "s3://x"}, {"field": "max_run_s"}),
}


@pytest.mark.parametrize(("said", "named"), REQUIRED.values(), ids=REQUIRED.keys())
def test_training_states_run_time_and_checkpoint(
    cell: CoreDriver, said: dict[str, Any], named: dict[str, str]
) -> None:
    """All that is missing is named at once; a queue's own limit does not stand for it."""
    apply(cell, "train", "training", default=True, required=["max_run_s", "checkpoint"])
    refused = ask(cell, "r1", queue="night", **said)

    assert ("template_requires", {"template": "train", **named}) == refusal(refused)
    event = ask(cell, "r2", queue="night", max_run_s=60, checkpoint="s3://ckpt/7")
    assert "s3://ckpt/7" == event["checkpoint"]


def test_online_inference_states_replicas_and_roll_back(cell: CoreDriver) -> None:
    """Zero replicas are said, and enough; the roll-back is kept on record."""
    apply(cell, "serve", "online-inference", default=True, required=["replicas_min", "rollback"])
    serving = {"queue": "q", "task": {"id": "x", "type": "online-inference"}}
    assert ("template_requires", {"template": "serve", "field": "rollback"}) == refusal(
        ask(cell, "r1", replicas_min=2, **serving)
    )
    event = ask(cell, "r2", replicas_min=0, rollback="model-41", **serving)

    assert "model-41" == event["rollback"]


LIMITS = {
    "too many devices": (
        {"ask": {"mode": "whole", "count": 3}},
        {"field": "max_gpus", "asked_milli": 3000, "max_gpus": 2},
    ),
    "too long": ({"max_run_s": 61}, {"field": "max_run_s", "asked": 61, "allowed": 60}),
    "too urgent": ({"priority": 1}, {"field": "max_priority", "asked": 1, "allowed": 0}),
    "another mode": (
        {"ask": {"mode": "share", "gpu_milli": 500}},
        {"field": "modes", "asked": "share", "allowed": "whole, mig"},
    ),
    "another type": (
        {"task": {"id": "x", "type": "training"}},
        {"field": "task.type", "asked": "training", "allowed": "evaluation"},
    ),
}


@pytest.mark.parametrize(("said", "numbers"), LIMITS.values(), ids=LIMITS.keys())
def test_what_a_template_forbids(
    cell: CoreDriver, said: dict[str, Any], numbers: dict[str, Any]
) -> None:
    """Each limit refuses with both sides of the comparison; at the limit it is let in."""
    limits = {"max_gpus": 2, "max_run_s": 60, "max_priority": 0, "modes": ["whole", "mig"]}
    apply(cell, "small", "evaluation", defaults={"queue": "q"}, limits=limits)
    refused = ask(cell, "r1", template="small", **said)

    assert ("template_forbids", {"template": "small", **numbers}) == refusal(refused)
    at_the_limit = {"ask": {"mode": "whole", "count": 2}, "max_run_s": 60}
    assert "request.received" == ask(cell, "r2", template="small", **at_the_limit)["type"]


@pytest.mark.parametrize(
    ("queue", "limit_s", "expected_s"), [("q", 9000, 9000), ("night", 9000, 7200), ("night", 5, 5)]
)
def test_who_states_no_run_time_gets_the_limit(
    cell: CoreDriver, queue: str, limit_s: int, expected_s: int
) -> None:
    """The smaller of the template's and the queue's (7,200 s for `night`)."""
    apply(cell, "t1", "training", default=True, limits={"max_run_s": limit_s})

    assert expected_s * 1_000_000 == ask(cell, "r1", queue=queue)["max_run_us"]


def test_a_lease_is_not_extended_beyond_its_template(cell: CoreDriver) -> None:
    """60 s asked of at most 100: 40 more are given, 41 are not."""
    apply(cell, "t1", "training", default=True, limits={"max_run_s": 100})
    ask(cell, "r1", queue="q", max_run_s=60)
    lease = cell.lease("r1").id

    longer = cell.feed("lease.extend", {"lease": lease, "more_s": 41})
    assert ("exceeds_max_run", 100_000_000) == (longer.code, longer.numbers["queue_max_run_us"])
    assert "applied" == cell.feed("lease.extend", {"lease": lease, "more_s": 40}).code


def test_unknown_names(cell: CoreDriver) -> None:
    """A template, and a template's queue, that nobody has made."""
    assert ("unknown_template", {"template": "x"}) == refusal(ask(cell, "r1", template="x"))
    assert "unknown_queue" == apply(cell, "t1", "training", defaults={"queue": "x"})
    first = ask(cell, "r2", template="x", tenant="nobody")
    assert "unknown_tenant" == first["code"], "the code that stands first in the list"


BAD = {
    "a default that is required": {"defaults": {"max_run_s": 5}, "required": ["max_run_s"]},
    "a default beyond the limit": {"defaults": {"max_run_s": 5}, "limits": {"max_run_s": 4}},
    "a priority beyond the limit": {"defaults": {"priority": 5}, "limits": {"max_priority": 4}},
    "an ask of a forbidden mode": {
        "defaults": {"ask": {"mode": "whole"}},
        "limits": {"modes": ["mig"]},
    },
    "a field that no request has": {"required": ["colour"]},
}


@pytest.mark.parametrize("more", BAD.values(), ids=BAD.keys())
def test_templates_that_no_request_could_meet(more: dict[str, Any]) -> None:
    """They are malformed: they would refuse every request."""
    plain = {"template": "t1", "task_type": "training", **more, **OPERATOR}
    with pytest.raises(ValueError, match=r"."):
        adapter("template.apply", 1).validate_json(orjson.dumps(plain))


def test_a_saved_template_decides_the_same(cell: CoreDriver) -> None:
    """After a snapshot the same request is let in with the same defaults."""
    apply(cell, "big", "training", default=True, defaults={"queue": "q", "ask": {"mode": "whole"}})
    loaded = load_fold(save_fold(cell.fold)).cells["c"]

    assert cell.state.templates == loaded.templates


def test_the_examples_cover_all_types() -> None:
    """The example has a default template for each of the six task types, and they apply."""
    cell = CoreDriver(check=True)
    found = read_site(EXAMPLES.read_text(), OPERATOR)
    for record in found:
        plain = record.data.model_dump(mode="json", exclude_unset=True)
        assert "applied" == cell.feed(record.type, plain, source="/operator").code

    defaults = [one.task_type for one in cell.state.templates.values() if one.default]
    assert sorted(TaskType.__args__) == sorted(defaults)  # type: ignore[attr-defined]
    train = cell.state.templates["training"]
    assert ["max_run_s", "checkpoint"] == train.required
    serve = cell.state.templates["online-inference"]
    assert ["replicas_min", "rollback"] == serve.required
