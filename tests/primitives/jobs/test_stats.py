"""Statistics, on every engine: counts, ages, rates and workers, the flush that writes them down, checks and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.clock import micros
from app.primitives.jobs.here import MINUTE, Sighting
from app.primitives.jobs.model import Beat, Claim, Figure, State, duration_bucket
from app.primitives.jobs.ops import queues, stats
from app.primitives.jobs.ops.stats import FlowFigures, Report, Stats
from app.primitives.jobs.tables import job_figures, job_workers
from tests.primitives.jobs.driving import Jobs, done, failed, unknown
from tests.service import Service

FLOW = ("q", "t", 1)


def report(jobs: Jobs, waiting: tuple[Claim, ...] = ()) -> Report:
    """A fresh one."""
    jobs.host.memory.report = None
    found: Report = jobs.database.read(stats.read, Stats(waiting=waiting))
    return found


def flush(jobs: Jobs) -> None:
    jobs.database.run(stats.flush, [jobs.host.memory.take()])


def states(found: Report) -> dict[tuple[str, str], str]:
    return {(one.worker, one.queue): one.state for one in found.workers}


def silent_after(jobs: Jobs) -> float:
    return jobs.host.settings.silent_after_seconds + 1


# -- counts and ages -------------------------------------------------------------------------------------------------------


def test_counts_are_exact_by_flow_and_state(jobs: Jobs) -> None:
    jobs.enqueue("q", "t", 1)
    jobs.enqueue("q", "t", 1, delay=60)
    jobs.enqueue("q", "t", 2)
    jobs.enqueue("other", "t", 1)
    jobs.settle(unknown(jobs.take("other")))
    found = report(jobs)
    assert {flow: dict(figures.counts) for flow, figures in found.flows.items()} == {
        ("q", "t", 1): {State.AVAILABLE: 1, State.SCHEDULED: 1},
        ("q", "t", 2): {State.AVAILABLE: 1},
        ("other", "t", 1): {State.UNKNOWN: 1},
    }
    assert found.of_queue("q").counts == Counter({State.AVAILABLE: 2, State.SCHEDULED: 1})


def test_the_oldest_is_the_one_that_has_been_available_longest_whatever_its_priority(jobs: Jobs) -> None:
    oldest = jobs.enqueue(priority=9)
    jobs.move(10)
    jobs.enqueue(priority=0)
    jobs.enqueue(delay=1)
    assert report(jobs).flows[FLOW].oldest == oldest.available_at
    for _ in range(2):
        jobs.settle(done(jobs.take()))
    assert report(jobs).flows[FLOW].oldest is None


def test_a_queue_without_jobs_is_told_too(jobs: Jobs) -> None:
    jobs.database.run(queues.put, [queues.Put("empty", jobs.caller)])
    found = report(jobs)
    assert found.paused_at == {"empty": None}
    assert found.of_queue("empty") == FlowFigures()


# -- rates of the last hour ------------------------------------------------------------------------------------------------


def test_attempts_successes_retries_and_deaths_are_counted(jobs: Jobs) -> None:
    for _ in range(3):
        jobs.enqueue(max_attempts=2)
    jobs.settle(done(jobs.take()))
    for _ in range(2):
        jobs.settle(failed(jobs.take(), delay=0))
    jobs.settle(failed(jobs.take()))
    sums = report(jobs).flows[FLOW].sums
    wanted = {Figure.CLAIMED: 4, Figure.SUCCEEDED: 1, Figure.FAILED: 3, Figure.RETRIED: 2, Figure.DEAD: 1}
    assert {figure: sums[figure] for figure in wanted} == wanted


def test_what_is_flushed_and_what_is_not_yet_are_one_sum(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    for _ in range(3):
        jobs.enqueue()
    other = replica()
    for process in (jobs, other):
        process.settle(done(process.take()))
        flush(process)
    jobs.settle(done(jobs.take()))
    assert report(jobs).flows[FLOW].sums[Figure.SUCCEEDED] == 3
    assert report(other).flows[FLOW].sums[Figure.SUCCEEDED] == 2, "not flushed by the other process yet"
    flush(jobs)
    assert report(other).flows[FLOW].sums[Figure.SUCCEEDED] == 3


def test_the_same_figure_flushed_again_is_added_up(jobs: Jobs) -> None:
    minute = jobs.now - jobs.now % MINUTE
    taken: Any = Counter({(1, minute, int(Figure.CLAIMED)): 2}), {}
    jobs.database.run(stats.flush, [taken, taken])
    jobs.database.run(stats.flush, [taken])
    assert [row.amount for row in jobs.rows(job_figures)] == [6]


def test_durations_give_a_mean_and_a_percentile(jobs: Jobs) -> None:
    for number in range(20):
        jobs.enqueue()
        grant = jobs.take(lease=3000)
        jobs.move(100 if number == 19 else 1)
        jobs.settle(done(grant))
    figures = report(jobs).flows[FLOW]
    assert (figures.mean_duration() or 0) / 1e6 == pytest.approx(5.95, rel=0.05)
    assert 1 <= (figures.p95_duration() or 0) / 1e6 <= 1.3
    jobs.enqueue()
    grant = jobs.take(lease=3000)
    jobs.move(100)
    jobs.settle(done(grant))
    assert 100 <= (report(jobs).flows[FLOW].p95_duration() or 0) / 1e6 <= 115


def test_figures_that_are_an_hour_old_count_no_more_and_are_forgotten_after_a_day(jobs: Jobs) -> None:
    jobs.enqueue()
    jobs.settle(done(jobs.take(worker="w")))
    flush(jobs)
    jobs.move(3600 + 60)
    assert report(jobs).flows[FLOW].sums == Counter()
    assert jobs.rows(job_figures)
    jobs.move(25 * 3600)
    flush(jobs)
    assert jobs.rows(job_figures) == []
    assert jobs.rows(job_workers) == []


# -- the flush -------------------------------------------------------------------------------------------------------------


def test_a_flush_whose_answer_was_lost_adds_nothing_twice(jobs: Jobs) -> None:
    jobs.enqueue()
    jobs.take()
    taken = jobs.host.memory.take()
    jobs.repeat(stats.flush, taken)
    assert [row.amount for row in jobs.rows(job_figures)] == [1]


def test_a_flush_that_failed_is_given_back_with_what_was_seen_since(jobs: Jobs) -> None:
    jobs.enqueue()
    jobs.enqueue()
    memory = jobs.host.memory
    jobs.take(worker="w", handlers=[("t", (1,))])
    taken = memory.take()
    grant = jobs.take(worker="w2")
    jobs.beat(grant)
    memory.give_back(*taken)
    figures, workers = memory.snapshot()
    assert sum(figures.values()) == 2
    assert set(workers) == {("w", "q"), ("w2", "q")}
    assert workers["w", "q"].handlers == (("t", (1,)),)
    assert memory.take() == (figures, workers), "a snapshot takes nothing away"
    assert memory.snapshot() == (Counter(), {})


def test_a_beat_given_back_under_a_claim_loses_neither() -> None:
    claimed = Sighting((("t", (1,)),), last_claimed_at=5, seen_at=5)
    both = claimed.with_newer(Sighting(last_beat_at=9, seen_at=9))
    assert both == Sighting((("t", (1,)),), 5, 9, 9)


def test_writing_sightings_down_needs_no_claim_to_wait(jobs: Jobs) -> None:
    """Netflix/conductor#576, airflow#66794: bookkeeping in the claim's transaction deadlocked claims."""
    jobs.enqueue()
    grant = jobs.take()
    jobs.beat_all(Beat(grant.id, grant.token, micros(60)))
    assert jobs.rows(job_workers) == [], "neither the claim nor the heartbeat wrote there"
    flush(jobs)
    (row,) = jobs.rows(job_workers)
    assert (row.worker, row.queue) == ("w", "q")
    assert row.last_claimed_at <= row.last_beat_at == row.seen_at


def test_many_figures_and_workers_fit_into_one_flush(jobs: Jobs) -> None:
    figures = Counter({(flow, MINUTE * 30_000_000, duration_bucket(flow)): flow for flow in range(1, 1201)})
    seen = {(f"w{number}", "q"): Sighting((), jobs.now, None, jobs.now) for number in range(1200)}
    jobs.database.run(stats.flush, [(figures, seen)])
    assert len(jobs.rows(job_figures)) == 1200
    assert len(report(jobs).workers) == 1000, "the list of workers is bounded"


# -- workers ---------------------------------------------------------------------------------------------------------------


def test_a_worker_that_beats_but_does_not_claim_while_there_is_work_is_silent(jobs: Jobs) -> None:
    """hatchet#4254: heartbeats were fine, and nothing was ever claimed."""
    jobs.enqueue()
    grant = jobs.take(worker="w", lease=3000)
    assert states(report(jobs)) == {("w", "q"): "active"}
    jobs.move(silent_after(jobs))
    jobs.beat(grant, lease=3000)
    assert states(report(jobs)) == {("w", "q"): "active"}, "there is nothing to claim"
    jobs.enqueue()
    assert states(report(jobs)) == {("w", "q"): "silent"}
    flush(jobs)
    assert states(report(jobs)) == {("w", "q"): "silent"}
    jobs.move(silent_after(jobs))
    assert states(report(jobs)) == {("w", "q"): "gone"}


def test_work_that_a_worker_does_not_handle_makes_it_not_silent(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(worker="w", lease=3000, handlers=[("t", (1,))])
    flush(jobs)
    jobs.move(silent_after(jobs))
    jobs.beat(grant, lease=3000)
    jobs.enqueue("q", "other")
    assert states(report(jobs)) == {("w", "q"): "active"}


def test_nobody_is_silent_in_a_paused_queue(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(worker="w", lease=3000)
    jobs.move(silent_after(jobs))
    jobs.beat(grant, lease=3000)
    jobs.enqueue()
    jobs.pause("q")
    assert states(report(jobs)) == {("w", "q"): "active"}


def test_a_claim_that_waits_counts_as_claiming_now(jobs: Jobs) -> None:
    jobs.claim("q", worker="w")
    jobs.move(silent_after(jobs))
    assert states(report(jobs)) == {("w", "q"): "gone"}
    waiting = (jobs.wanted("q", "p", worker="w"),)
    assert states(report(jobs, waiting)) == {("w", "q"): "active", ("w", "p"): "active"}


# -- one report for many ---------------------------------------------------------------------------------------------------


def test_a_report_is_shared_for_a_second(jobs: Jobs) -> None:
    first = jobs.database.read(stats.read, Stats())
    jobs.enqueue()
    assert jobs.database.read(stats.read, Stats()) is first
    jobs.move(1 + stats.COST_FACTOR * first.cost / 1e6)
    assert jobs.database.read(stats.read, Stats()).flows[FLOW].counts[State.AVAILABLE] == 1


def test_a_report_that_took_long_is_kept_longer(jobs: Jobs) -> None:
    first = report(jobs)
    costly = Report(first.at, micros(3), first.flows, first.paused_at, first.workers)
    jobs.host.memory.report = costly
    jobs.move(20)
    assert jobs.database.read(stats.read, Stats()) is costly
    jobs.move(11)
    assert jobs.database.read(stats.read, Stats()) is not costly


# -- over HTTP -------------------------------------------------------------------------------------------------------------


async def worked(service: Service) -> None:
    """Two jobs, of which one succeeded and one waits."""
    for number in range(2):
        await service.post("/v1/jobs", {"queue": "mail", "type": "send", "payload": number}, status=201)
    (job,) = (await service.post("/v1/jobs/claim", {"queues": ["mail"], "worker": "w"}, status=200))["jobs"]
    await service.post(f"/v1/jobs/{job['id']}/complete", {"token": job["reservation"]["token"]}, status=200)


@pytest.mark.anyio
async def test_statistics_are_read_over_http(service: Service) -> None:
    await worked(service)
    found = await service.get("/v1/stats", status=200)
    (queue,) = found["queues"]
    (type_,) = queue["types"]
    assert (queue["queue"], type_["type"], type_["schema_version"]) == ("mail", "send", 1)
    for figures in (queue, type_):
        assert (figures["counts"]["available"], figures["counts"]["succeeded"]) == (1, 1)
        assert (figures["attempts"], figures["succeeded"], figures["retry_rate_ppm"]) == (1, 1, 0)
        assert figures["p95_duration_seconds"] >= 0
        assert figures["oldest_available_seconds"] >= 0
    assert [(worker["worker"], worker["state"]) for worker in found["workers"]] == [("w", "active")]


def checks_of(body: Any) -> dict[str, Any]:
    return {check["name"]: check for check in body["checks"]}


@pytest.mark.anyio
async def test_health_tells_each_queues_figures_and_warns_above_its_thresholds(service: Service) -> None:
    await worked(service)
    told = checks_of(await service.get("/health"))
    assert told["jobs.mail.depth"] | {"output": None} == {
        "name": "jobs.mail.depth",
        "status": "pass",
        "value": 1,
        "unit": "jobs",
        "output": None,
    }
    (job,) = (await service.post("/v1/jobs/claim", {"queues": ["mail"], "worker": "w"}, status=200))["jobs"]
    body = {"token": job["reservation"]["token"], "category": "no_answer"}
    await service.post(f"/v1/jobs/{job['id']}/unknown", body, status=200)
    await service.post("/v1/jobs", {"queue": "mail", "type": "send", "payload": 1}, status=201)
    service.move(service.runtime.settings.health_oldest_seconds + 1)
    told = checks_of(await service.get("/health"))
    assert told["jobs.mail.unknown"]["status"] == told["jobs.mail.oldest_available"]["status"] == "warn"
    assert told["jobs.mail.dead"]["status"] == told["jobs.mail.depth"]["status"] == "pass"


@pytest.mark.anyio
async def test_metrics_tell_jobs_by_state_and_count_claims(service: Service) -> None:
    await worked(service)
    await service.get("/v1/stats", status=200)
    text = (await service.client.get("/metrics")).text
    assert 'tenure_jobs{queue="mail",state="available"} 1.0' in text
    assert 'tenure_job_claims_total{queue="mail",type="send"} 1.0' in text
    assert 'tenure_job_settlements_total{outcome="succeeded",queue="mail",type="send"} 1.0' in text
    assert 'tenure_queue_oldest_available_seconds{queue="mail"}' in text


@pytest.mark.anyio
async def test_the_first_scrape_asks_for_a_report_and_the_next_has_it(service: Service) -> None:
    await worked(service)
    before = (await service.client.get("/metrics")).text
    assert "tenure_jobs{" not in before, "a scrape never waits for the database"
    job = (await service.get("/v1/jobs", status=200))["items"][0]
    await service.get(f"/v1/jobs/{job['id']}/explain", status=200)  # read by the same thread, after the report
    assert 'tenure_jobs{queue="mail",state="available"} 1.0' in (await service.client.get("/metrics")).text
