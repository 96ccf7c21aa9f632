"""Drift, on every engine: promises against figures that were made by driving jobs; and the comparison itself, pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.access import ANONYMOUS, Principal, Role
from app.clock import micros
from app.jsontext import parse
from app.primitives.audit.model import new_id
from app.primitives.contracts.model.contract import Contract
from app.primitives.contracts.model.drift import LEAST_RUNS, Practice, compare
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.ops import contracts as ops
from app.primitives.contracts.ops.drift import HOUR_MICROS, DriftReport, Look, drift
from app.primitives.jobs.model import Control, Figure, Granted, State, Verdict
from app.primitives.jobs.ops import stats
from app.primitives.jobs.ops.control import reconcile
from tests.primitives.contracts.promises import GOOD, contract, good
from tests.primitives.jobs.driving import Jobs, done, failed, unknown
from tests.primitives.jobs.driving import good as outcome
from tests.service import Service

DEFAULTS = Defaults()


def register(jobs: Jobs, type_: str = "t", **changes: Any) -> None:
    said = parse(Contract, msgspec.json.encode(good(**changes)), max_value_bytes=1 << 18)
    (stored,) = jobs.database.run(ops.put, [ops.Put(type_, 1, said, ANONYMOUS, "r", new_id(), new_id())])
    assert outcome(stored).created


def look(jobs: Jobs, window: int = 24 * HOUR_MICROS, *patterns: str) -> DriftReport:
    viewer = Principal("v", "v", frozenset({Role.VIEWER}), patterns)
    found: DriftReport = jobs.database.read(drift, Look(viewer, window))
    return found


def told(report: DriftReport) -> list[tuple[str, str]]:
    return [(one.type, str(one.drift.kind)) for one in report.items]


def figures(report: DriftReport) -> dict[str, float]:
    (one,) = report.items
    return dict(one.drift.figures)


def ran(jobs: Jobs, seconds: float, type_: str = "t") -> None:
    jobs.enqueue("q", type_)
    grant = jobs.take("q", lease=600)
    jobs.move(seconds)
    jobs.settle(done(grant))


def run_twice(jobs: Jobs) -> tuple[Granted, Granted]:
    """A job whose first worker lost its lease and goes on, beside the second one."""
    jobs.enqueue("q", "t")
    first = jobs.take("q", lease=10)
    jobs.move(11)
    assert jobs.abandon() == 1
    jobs.move(60)
    assert jobs.promote() == 1
    return first, jobs.take("q", lease=600)


# -- figures by driving jobs -----------------------------------------------------------------------------------------------


def test_an_idle_installation_has_not_drifted(jobs: Jobs) -> None:
    register(jobs)
    report = look(jobs)
    assert (report.items, report.contracts, report.types) == ((), 1, 0)


def test_runs_that_come_near_the_timeout_are_told_with_both_figures(jobs: Jobs) -> None:
    register(jobs, timeout_seconds=50)
    for _ in range(LEAST_RUNS):
        ran(jobs, 45)
    report = look(jobs)
    assert told(report) == [("t", "timeout_near")]
    shown = figures(report)
    assert (shown["timeout_seconds"], shown["succeeded"]) == (50, LEAST_RUNS)
    assert 44 < shown["p99_duration_seconds"] < 50


def test_runs_that_keep_well_below_the_timeout_are_not_told(jobs: Jobs) -> None:
    register(jobs, timeout_seconds=50)
    for _ in range(LEAST_RUNS):
        ran(jobs, 20)
    assert look(jobs).items == ()


def test_dead_work_is_told_without_a_handler_and_without_a_contract_and_not_with_both(jobs: Jobs) -> None:
    register(jobs, "handled")
    register(jobs, "unhandled", terminal_handler=None)
    for type_ in ("handled", "unhandled", "wild"):
        jobs.enqueue("q", type_)
        jobs.settle(failed(jobs.take("q"), retry=False))
    report = look(jobs)
    assert told(report) == [("unhandled", "dead_unhandled"), ("wild", "no_contract")]
    assert [one.drift.figures["dead"] for one in report.items] == [1, 1]


def test_a_death_by_verdict_is_a_death(jobs: Jobs) -> None:
    register(jobs, "judged", terminal_handler=None)
    job = jobs.enqueue("q", "judged")
    jobs.settle(unknown(jobs.take("q")))
    verdict = Control(job.id, jobs.caller, reason="gone", verdict=Verdict.DEAD, evidence=b"1")
    assert outcome(jobs.database.run(reconcile, [verdict])[0]).job.state is State.DEAD
    report = look(jobs)
    assert told(report) == [("judged", "dead_unhandled")]
    assert report.items[0].drift.figures["dead"] == 1


def test_an_answer_of_a_run_that_another_has_followed_is_a_duplicate_run(jobs: Jobs) -> None:
    register(jobs, effects="idempotent")
    first, second = run_twice(jobs)
    assert look(jobs).items == (), "nobody has seen yet that the first goes on"
    (late,) = jobs.settle_all(done(first))
    assert late.extra["reason"] == "superseded"
    jobs.settle(done(second))
    report = look(jobs)
    assert told(report) == [("t", "ran_twice")]
    assert figures(report) == {"duplicate_runs": 1, "attempts": 2}


def test_an_answer_after_the_lease_that_nobody_has_followed_is_none(jobs: Jobs) -> None:
    register(jobs, effects="idempotent")
    jobs.enqueue("q", "t")
    grant = jobs.take("q", lease=10)
    jobs.move(11)
    assert jobs.abandon() == 1
    jobs.settle_all(done(grant))
    assert look(jobs).items == ()


def test_lost_leases_are_told_per_run_against_their_budget(jobs: Jobs) -> None:
    register(jobs, max_lease_losses=2)
    for _ in range(3):
        _, second = run_twice(jobs)
        jobs.settle(done(second))
    report = look(jobs)
    assert told(report) == [("t", "leases_lost")]
    assert figures(report) == {
        "max_lease_losses": 2, "lease_losses_per_run": 1.0, "lease_losses": 3, "attempts": 6,
    }  # fmt: skip


def test_the_figures_of_a_type_are_of_all_its_queues_flushed_or_not(jobs: Jobs) -> None:
    for queue in ("one", "two"):
        jobs.enqueue(queue, "t")
        jobs.settle(failed(jobs.take(queue), retry=False))
        if queue == "one":
            jobs.database.run(stats.flush, [jobs.host.memory.take()])
    found = jobs.database.read(stats.practice, micros(3600))
    assert {key: sums.sums[Figure.DEAD] for key, sums in found.items()} == {("t", 1): 2}


def test_what_lies_before_the_window_is_not_told(jobs: Jobs) -> None:
    jobs.enqueue("q", "t")
    jobs.settle(failed(jobs.take("q"), retry=False))
    jobs.move(2 * 3600)
    assert told(look(jobs)) == [("t", "no_contract")]
    assert look(jobs, HOUR_MICROS).items == ()


def test_a_limited_key_sees_the_drift_of_its_own_types(jobs: Jobs) -> None:
    for type_ in ("billing.x", "mail.x"):
        jobs.enqueue("q", type_)
        jobs.settle(failed(jobs.take("q"), retry=False))
    report = look(jobs, 24 * HOUR_MICROS, "mail.*")
    assert told(report) == [("mail.x", "no_contract")]
    assert report.types == 1


@pytest.mark.anyio
async def test_drift_over_http(service: Service) -> None:
    await service.put("/v1/contracts/t/1", {**GOOD, "terminal_handler": None}, status=201)
    await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": {}}, status=201)
    (job,) = (await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]
    body = {"token": job["reservation"]["token"], "category": "broken", "retry": False}
    await service.post(f"/v1/jobs/{job['id']}/fail", body, status=200)
    report = await service.get("/v1/contracts/drift?window_hours=1", status=200)
    assert (report["window_seconds"], report["contracts"], report["types"]) == (3600, 1, 1)
    (item,) = report["items"]
    assert (item["type"], item["kind"], item["figures"]) == ("t", "dead_unhandled", {"dead": 1, "attempts": 1})
    await service.get("/v1/contracts/drift?window_hours=25", status=422)


# -- the comparison --------------------------------------------------------------------------------------------------------


def kinds(practice: Practice, **changes: Any) -> list[str]:
    return [str(one.kind) for one in compare(contract(**changes), practice, DEFAULTS)]


@pytest.mark.parametrize(("practice", "changes", "expected"), [
    (Practice(), {}, []),
    (Practice(100, 100, p99=micros(35)), {"timeout_seconds": 45}, []),
    (Practice(100, 100, p99=micros(36)), {"timeout_seconds": 45}, ["timeout_near"]),
    (Practice(19, 19, p99=micros(44)), {"timeout_seconds": 45}, []),
    (Practice(100, 100, p99=micros(3000)), {"timeout_seconds": None}, ["timeout_near"]),  # an hour, by the settings
    (Practice(9, 5, duplicates=1), {"effects": "none"}, []),
    (Practice(9, 5, duplicates=1), {"effects": "keyed"}, ["ran_twice"]),
    (Practice(9, 5, duplicates=1), {"effects": "non_idempotent"}, ["ran_twice"]),
    (Practice(9, 5, duplicates=1), {}, ["ran_twice"]),
    (Practice(9, 5, dead=2), {}, []),
    (Practice(9, 5, dead=2), {"terminal_handler": None}, ["dead_unhandled"]),
    (Practice(14, 10, abandoned=4), {"max_lease_losses": 1}, []),
    (Practice(15, 10, abandoned=5), {"max_lease_losses": 1}, ["leases_lost"]),
    (Practice(15, 10, abandoned=5), {}, []),  # three, by the settings
    (Practice(3, 0, abandoned=3), {}, ["leases_lost"]),
])  # fmt: skip
def test_promise_and_practice_are_compared(practice: Practice, changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(practice, **changes) == expected


def test_what_a_duplicate_run_means_depends_on_the_promise() -> None:
    details = {
        effects: next(iter(compare(contract(effects=effects), Practice(2, 1, duplicates=1), DEFAULTS))).detail
        for effects in ("keyed", "non_idempotent", None)
    }
    assert len(set(details.values())) == 3
    assert "must not happen twice" in details["non_idempotent"]
