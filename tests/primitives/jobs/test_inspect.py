"""Reading jobs, on every engine: a job's history, what each role may see, and pages by every filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from app.clock import to_text
from app.errors import Refusal
from app.primitives.jobs.model import Control, Filter, Kind, State, Verdict, id_text, new_id
from app.primitives.jobs.ops.control import cancel, reconcile, retry
from app.primitives.jobs.ops.inspect import Get, Listing, Page, get, list_jobs
from app.primitives.jobs.schemas.views import detail_view
from app.primitives.jobs.store import lists
from tests.primitives.jobs.driving import Jobs, done, failed, principal, released, unknown
from tests.service import Service


def read(jobs: Jobs, job_id: bytes, *patterns: str, **wanted: bool) -> Any:
    return jobs.database.read(get, Get(job_id, principal("k", *patterns), **wanted))


def kinds(jobs: Jobs, job_id: bytes) -> list[str]:
    return [event.kind for event in read(jobs, job_id).events]


def listed(jobs: Jobs, limit: int = 50, after: bytes | None = None, *patterns: str, **wanted: Any) -> Page:
    page: Page = jobs.database.read(list_jobs, Listing(Filter(**wanted), principal("k", *patterns), limit, after))
    return page


def ids(page: Page) -> list[bytes]:
    return [job.id for job in page.jobs]


def all_pages(jobs: Jobs, limit: int, **wanted: Any) -> list[bytes]:
    found: list[bytes] = []
    after: bytes | None = None
    while True:
        page = listed(jobs, limit, after, **wanted)
        assert len(page.jobs) <= limit
        found += ids(page)
        if page.after is None:
            return found
        after = page.after


# -- one job ---------------------------------------------------------------------------------------------------------------


def test_a_jobs_history_tells_every_attempt_in_order(jobs: Jobs) -> None:
    job = jobs.enqueue(correlation_id="c", parent_operation_id="p", max_attempts=9)
    jobs.settle(failed(jobs.take(worker="w1"), "timeout", delay=0, message="no answer", reference="err-1"))
    jobs.settle(released(jobs.take(worker="w2")))
    jobs.take(worker="w3", lease=30)
    jobs.move(31)
    jobs.abandon()
    jobs.move(3600)
    jobs.promote()
    jobs.settle(done(jobs.take(worker="w4"), b"1"))
    detail = read(jobs, job.id)
    assert [(event.kind, event.worker, event.fence) for event in detail.events] == [
        ("enqueued", None, None),
        ("claimed", "w1", 1),
        ("failed", "w1", 1),
        ("claimed", "w2", 2),
        ("released", "w2", 2),
        ("claimed", "w3", 3),
        ("abandoned", "w3", 3),
        ("claimed", "w4", 4),
        ("succeeded", "w4", 4),
    ]
    assert (detail.job.correlation_id, detail.job.parent_operation_id) == ("c", "p")
    assert (detail.request_id, detail.created_by) == ("request-1", jobs.caller.principal.key_id)
    assert [event.at for event in detail.events] == sorted(event.at for event in detail.events)


def test_the_last_real_error_is_told_also_after_a_lost_lease(jobs: Jobs) -> None:
    job = jobs.enqueue(max_attempts=9)
    jobs.settle(failed(jobs.take(), "timeout", delay=0, message="no answer", reference="err-1"))
    jobs.take(lease=30)
    jobs.move(31)
    jobs.abandon()
    view = detail_view(read(jobs, job.id), evidence=False)
    assert (view["last_error"]["category"], view["last_error"]["message"]) == ("timeout", "no answer")
    assert view["category"] == "timeout"
    assert view["events"][-1]["state"] == "scheduled"
    assert view["events"][-1]["available_at"] == view["available_at"]


def test_a_job_that_succeeded_by_a_verdict_has_no_success_of_a_worker(jobs: Jobs) -> None:
    job = jobs.enqueue()
    jobs.settle(unknown(jobs.take()))
    command = Control(job.id, jobs.caller, verdict=Verdict.SUCCEEDED, evidence=b'{"n":1.0}')
    jobs.database.run(reconcile, [command])
    assert kinds(jobs, job.id) == ["enqueued", "claimed", "unknown", "reconciled"]
    shown = detail_view(read(jobs, job.id), evidence=True)["events"][-1]
    assert (shown["verdict"], bytes(shown["evidence"]), shown["category"]) == ("succeeded", b'{"n":1.0}', None)
    assert detail_view(read(jobs, job.id), evidence=False)["events"][-1]["evidence"] is None


def test_what_operators_did_stands_in_the_history(jobs: Jobs) -> None:
    job = jobs.enqueue()
    for op in (cancel, retry, cancel):
        jobs.move(1)
        jobs.database.run(op, [Control(job.id, jobs.caller, "why")])
    assert kinds(jobs, job.id) == ["enqueued", "cancelled", "retried", "cancelled"]


def test_a_grant_that_reached_nobody_leaves_no_trace(jobs: Jobs) -> None:
    job = jobs.enqueue()
    jobs.give_back(jobs.take())
    assert kinds(jobs, job.id) == ["enqueued"]


def test_payload_and_result_are_given_only_if_asked_for_and_as_they_came(jobs: Jobs) -> None:
    payload = b'{"n": 12345678901234567890.10, "n": 2}'
    job = jobs.enqueue(payload=payload)
    grant = jobs.take()
    jobs.beat(grant, progress=b'{"at": 1.0}')
    jobs.settle(done(grant, b"[1.00]"))
    plain = read(jobs, job.id)
    assert (plain.payload, plain.result, plain.progress) == (None, None, b'{"at": 1.0}')
    whole = read(jobs, job.id, payload=True, result=True)
    assert (whole.payload, whole.result) == (payload, b"[1.00]")
    assert "payload" not in detail_view(plain, evidence=True)


def test_an_id_that_names_nothing_is_not_found(jobs: Jobs) -> None:
    refusal = read(jobs, new_id())
    assert isinstance(refusal, Refusal)
    assert refusal.code.name == "not_found"


def test_a_key_limited_to_other_queues_may_not_read_it(jobs: Jobs) -> None:
    job = jobs.enqueue("billing.eu")
    assert read(jobs, job.id, "billing.*").job.id == job.id
    assert read(jobs, job.id, "mail.*").code.name == "forbidden"


# -- pages -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(jobs: Jobs) -> list[tuple[bytes, dict[str, Any]]]:
    """Jobs of many kinds, oldest first, each with what its filters must be to find it."""
    made = []
    for number in range(24):
        queue, type_ = ("a", "b")[number % 2], ("x", "y", "z")[number % 3]
        references = {"correlation_id": f"c{number % 4}"} if number % 2 else {"parent_operation_id": f"p{number % 5}"}
        job = jobs.enqueue(queue, type_, delay=3600 if number % 4 == 0 else None, **references)
        state = State.SCHEDULED if number % 4 == 0 else State.AVAILABLE
        made.append((job.id, {"queue": queue, "type": type_, "state": state, **references}))
        jobs.move(1)
    return made


WAYS: list[dict[str, Any]] = [
    {},
    {"queue": "a"},
    {"type": "y"},
    {"queue": "a", "type": "x"},
    {"state": State.SCHEDULED},
    {"queue": "a", "state": State.AVAILABLE},
    {"correlation_id": "c1"},
    {"parent_operation_id": "p0"},
    {"correlation_id": "c3", "queue": "b", "state": State.AVAILABLE},
    {"queue": "none"},
    {"correlation_id": "none"},
    {"correlation_id": "c1", "parent_operation_id": "p0"},
]


@pytest.mark.parametrize("wanted", WAYS, ids=str)
@pytest.mark.parametrize("few", [0, 2000], ids=["as if many", "as few"])
@pytest.mark.parametrize("window", [3, 20_000], ids=["short windows", "one window"])
def test_pages_of_any_filter_hold_each_job_once_and_newest_first(
    jobs: Jobs,
    many: list[tuple[bytes, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, Any],
    few: int,
    window: int,
) -> None:
    monkeypatch.setattr(lists, "FEW", few)
    monkeypatch.setattr(lists, "WINDOW", window)
    expected = [job_id for job_id, told in reversed(many) if wanted.items() <= told.items()]
    for limit in (1, 4, 50):
        assert all_pages(jobs, limit, **wanted) == expected


def test_a_page_carries_references_and_no_payload(jobs: Jobs) -> None:
    jobs.enqueue(correlation_id="é😀", parent_operation_id="p")
    (job,) = listed(jobs).jobs
    assert (job.correlation_id, job.parent_operation_id) == ("é😀", "p")
    assert not hasattr(job, "payload")


def test_references_are_told_apart_by_their_bytes(jobs: Jobs) -> None:
    made = {key: jobs.enqueue(correlation_id=key).id for key in ("a", "A", "a ", "é", "e")}
    for key, job_id in made.items():
        assert ids(listed(jobs, correlation_id=key)) == [job_id]


def test_the_worker_and_the_category_of_the_last_failure_are_filters(jobs: Jobs) -> None:
    first, second = jobs.enqueue().id, jobs.enqueue().id
    for worker in ("W", "w"):
        jobs.settle(failed(jobs.take(worker=worker), f"broken_{worker}", retry=False))
    assert ids(listed(jobs, worker="W")) == [first]
    assert ids(listed(jobs, worker="w ")) == []
    assert ids(listed(jobs, category="broken_w")) == [second]
    assert ids(listed(jobs, category="broken_w", worker="W")) == []


def test_created_filters_count_the_first_moment_in_and_the_last_out(jobs: Jobs) -> None:
    made = []
    for _ in range(4):
        made.append(jobs.enqueue())
        jobs.move(10)
    between = listed(jobs, created_after=made[1].created_at, created_before=made[3].created_at)
    assert ids(between) == [made[2].id, made[1].id]


@pytest.mark.parametrize("days", [-40, 40])
def test_created_filters_hold_however_far_the_databases_clock_is_from_the_ids(jobs: Jobs, days: int) -> None:
    """Ids begin with a replica's time, `created_at` is the database's: only the second decides."""
    jobs.move(days * 86_400)
    old = jobs.enqueue()
    jobs.move(3 * 86_400)
    new = jobs.enqueue()
    assert ids(listed(jobs, created_after=new.created_at)) == [new.id]
    assert ids(listed(jobs, created_before=new.created_at)) == [old.id]


def test_a_keys_patterns_narrow_every_page(jobs: Jobs) -> None:
    mine, other = jobs.enqueue("billing.eu", correlation_id="c"), jobs.enqueue("mail", correlation_id="c")
    for wanted in ({}, {"correlation_id": "c"}, {"state": State.AVAILABLE}):
        assert ids(listed(jobs, 50, None, "billing.*", **wanted)) == [mine.id]
        assert ids(listed(jobs, **wanted)) == [other.id, mine.id]
    assert listed(jobs, 50, None, "none.*") == Page()


def test_another_replica_sees_the_same(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    job = jobs.enqueue("q", "t", 7)
    other = replica()
    assert listed(other).jobs[0].flow == ("q", "t", 7)
    assert read(other, job.id).job.flow == ("q", "t", 7)


# -- over HTTP -------------------------------------------------------------------------------------------------------------


async def enqueued(service: Service, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await service.post(
        "/v1/jobs", {"queue": "q", "type": "t", "payload": {}, **fields}, status=201
    )
    return answer


@pytest.mark.anyio
async def test_a_job_is_read_over_http_with_its_payload_byte_for_byte(service: Service) -> None:
    body = b'{"queue": "q", "type": "t", "payload": {"z": 1, "a": 1.10, "z": 123456789012345678901}}'
    made = await service.client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    path = f"/v1/jobs/{made.json()['id']}"
    plain = await service.get(path, status=200)
    assert "payload" not in plain
    assert [event["kind"] for event in plain["events"]] == ["enqueued"]
    whole = await service.client.get(path, params={"include": "payload,result"})
    assert b'"payload":{"z": 1, "a": 1.10, "z": 123456789012345678901}' in whole.content
    assert "result" not in whole.json()
    await service.get(path, params={"include": "tokens"}, status=422)
    await service.get(f"/v1/jobs/{UUID(bytes=new_id())}", status=404)


@pytest.mark.anyio
async def test_no_answer_about_a_job_holds_its_token(service: Service) -> None:
    job = await enqueued(service)
    (claimed,) = (await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]
    for path in ("/v1/jobs", f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/explain", "/v1/audit", "/v1/stats"):
        answer = await service.client.get(path)
        assert answer.status_code == 200
        assert claimed["reservation"]["token"][:40] not in answer.text


@pytest.mark.anyio
async def test_only_operators_see_payloads_and_viewers_change_nothing(service: Service) -> None:
    """kind_robots#924: a read-only role that the buttons did not know of."""
    job = await enqueued(service)
    path = f"/v1/jobs/{job['id']}"
    root = await service.post("/v1/api-keys", {"name": "root", "roles": ["admin"]}, status=201)
    by_root = {"headers": {"authorization": f"Bearer {root['key']}"}}
    keys = {}
    for role in ("viewer", "operator", "producer", "worker"):
        made = await service.post("/v1/api-keys", {"name": role, "roles": [role]}, status=201, **by_root)
        keys[role] = {"headers": {"authorization": f"Bearer {made['key']}"}}
    include = {"params": {"include": "payload"}}
    await service.get(path, status=200, **keys["viewer"])
    await service.get(path, status=403, **keys["viewer"], **include)
    assert (await service.get(path, status=200, **keys["operator"], **include))["payload"] == {}
    for role in ("producer", "worker"):
        await service.get(path, status=403, **keys[role])
        await service.get("/v1/stats", status=403, **keys[role])
    bulk = {"action": "cancel", "filter": {"queue": "q"}, "dry_run": True, "reason": "x"}
    for role in ("viewer", "producer", "worker"):
        await service.post(f"{path}/cancel", {"reason": "x"}, status=403, **keys[role])
        await service.post("/v1/jobs/bulk", bulk, status=403, **keys[role])
        await service.post("/v1/queues/q/pause", {"reason": "x"}, status=403, **keys[role])
        await service.put("/v1/queues/q", {}, status=403, **keys[role])
    await service.post(f"{path}/cancel", {"reason": "x"}, status=200, **keys["operator"])


@pytest.mark.anyio
async def test_a_reader_sees_at_once_that_a_lease_has_ended(service: Service) -> None:
    job = await enqueued(service)
    await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w", "lease_seconds": 5}, status=200)
    assert (await service.get(f"/v1/jobs/{job['id']}", status=200))["state"] == "running"
    service.move(6)
    told = await service.get(f"/v1/jobs/{job['id']}", status=200)
    assert (told["state"], told["lease_losses"], told["expires_at"]) == ("scheduled", 1, None)


@pytest.mark.anyio
async def test_jobs_are_listed_over_http_page_by_page(service: Service) -> None:
    made = [await enqueued(service, type=f"t{number % 2}") for number in range(5)]
    first = await service.get("/v1/jobs", params={"limit": 2, "queue": "q"}, status=200)
    assert [job["id"] for job in first["items"]] == [made[4]["id"], made[3]["id"]]
    following = {"limit": 2, "queue": "q", "cursor": first["next_cursor"]}
    second = await service.get("/v1/jobs", params=following, status=200)
    assert [job["id"] for job in second["items"]] == [made[2]["id"], made[1]["id"]]
    await service.get("/v1/jobs", params={**following, "queue": "other"}, status=400)
    filtered = await service.get("/v1/jobs", params={"type": "t1", "state": "available"}, status=200)
    assert len(filtered["items"]) == 2
    await service.get("/v1/jobs", params={"state": "waiting"}, status=422)
    after = to_text(service.runtime.clock.now() + 1_000_000)
    assert (await service.get("/v1/jobs", params={"created_after": after}, status=200))["items"] == []


def test_kinds_of_events_that_are_told_by_the_row_are_never_stored(jobs: Jobs) -> None:
    job = jobs.enqueue()
    jobs.settle(done(jobs.take()))
    assert jobs.kinds(job.id) == []
    assert kinds(jobs, job.id) == [Kind.ENQUEUED, Kind.CLAIMED, Kind.SUCCEEDED]
    assert id_text(job.id) == detail_view(read(jobs, job.id), evidence=False)["id"]
