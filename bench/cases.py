"""Throughput: what the service does over HTTP against what one bare connection does with the same statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from app.primitives.jobs.model import State
from bench import seed, wrk
from bench.report import Figure
from bench.stand import Stand
from bench.tape import Floor
from bench.wire import Wire


@dataclass(frozen=True, slots=True)
class Pace:
    """How long everything is measured: `--quick` or in full."""

    warm_seconds: float
    measure_seconds: float
    floor_passes: int
    floor_units: dict[int, int]  # batch size -> transactions of each verb on the tape
    seeded: int
    backlogs: tuple[int, ...]
    beside: int
    claims: int
    pickups: int
    idle_seconds: float
    keyed: int  # jobs that wait behind one concurrency key
    drained: int  # of those, how many are worked off one by one


QUICK = Pace(0.7, 2.5, 1, {1: 200, 10: 40, 100: 8}, 30_000, (1_000, 100_000), 100_000, 200, 60, 4, 10_000, 1_000)
FULL = Pace(
    2, 10, 3, {1: 600, 10: 150, 100: 30}, 150_000, (1_000, 100_000, 1_000_000), 1_000_000, 400, 200, 10, 10_000, 10_000
)


@dataclass(frozen=True, slots=True)
class Case:
    """A load and the floor that it is held against: `times` x floor(`batch`) of `verb`."""

    name: str
    mode: str
    clients: int
    batch: int
    floor_batch: int
    verb: str
    times: int = 1
    target: float | None = None

    @property
    def floor_of(self) -> str:
        return f"{f'{self.times} x ' if self.times > 1 else ''}{self.verb}({self.floor_batch})"


CASES = (
    Case("enqueue, 1 client", "enqueue", 1, 1, 1, "enqueue"),
    Case("enqueue, 16 clients", "enqueue", 16, 1, 1, "enqueue"),
    Case("enqueue, 64 clients", "enqueue", 64, 1, 1, "enqueue", target=0.8),
    Case("claim + complete, 64 workers", "work", 64, 1, 1, "work", times=2, target=1.0),
    Case("worker, 16 claims in flight", "worker", 16, 1, 10, "work", target=1.0),
    Case("life by 10, 16 clients", "life", 16, 10, 10, "life"),
    Case("life by 100, 8 clients", "life", 8, 100, 100, "life", target=0.9),
)


def all_cases(stand: Stand, floor: Floor, pace: Pace, only: str) -> Iterator[Figure]:
    """Run each case, its floor right before and right after it: a noisy machine disturbs both alike."""
    chosen = [case for case in CASES if only in case.name]
    for batch in sorted({case.floor_batch for case in chosen}):
        floor.record(batch, pace.floor_units[batch])
    for case in chosen:
        yield _measure(stand, floor, pace, case)


def _measure(stand: Stand, floor: Floor, pace: Pace, case: Case) -> Figure:
    seeded = _prepare(stand, pace, case)
    before = floor.measure(case.floor_batch, pace.floor_passes)[case.verb]
    used, lanes = stand.use(), stand.lanes()
    load = wrk.Load(case.mode, queue_of(case), case.clients, case.batch, pace.warm_seconds, pace.measure_seconds)
    counts = wrk.run(load, stand.urls)
    use, lanes = stand.use(), stand.lanes() - lanes
    after = floor.measure(case.floor_batch, pace.floor_passes)[case.verb]
    done = counts.acked if case.mode == "enqueue" else counts.settled
    inside = counts.window_acked if case.mode == "enqueue" else counts.window_settled
    bar, rate = case.times * (before + after) / 2, inside / pace.measure_seconds
    return Figure(
        case.name, rate, "jobs/s", bar, case.floor_of, rate / bar,
        "" if case.target is None else f">= {case.target}", None if case.target is None else rate / bar >= case.target,
        counts.p50_ms, counts.p99_ms,
        1000 * (use.service_cpu - used.service_cpu) / max(done, 1),
        1000 * (use.database_cpu - used.database_cpu) / max(done, 1),
        f"{counts.window_requests / pace.measure_seconds:,.0f} requests/s; {_batches(lanes)}; {counts.empty} empty claims"
        + (f"; floor {before:,.0f} before, {after:,.0f} after" if abs(before - after) > 0.2 * before else ""),
        _wrong(stand, case, counts, seeded),
    )  # fmt: skip


def _batches(lanes: Counter[str]) -> str:
    """How many commands of each lane shared a transaction."""
    shares = []
    for verb in ("enqueue", "claim", "settle"):
        commands, batches = (
            lanes[f'tenure_lane_{kind}_total{{lane="jobs.{verb}"}}'] for kind in ("commands", "batches")
        )
        if batches:
            shares.append(f"{verb} {commands / batches:.1f}")
    return f"requests a commit: {', '.join(shares)}"


def queue_of(case: Case) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in case.name)


def _prepare(stand: Stand, pace: Pace, case: Case) -> int:
    """An empty table, the case's queue known to every process, and work in it where the load makes none itself."""
    for url in stand.urls:
        wire = Wire(url)
        wire.call("/v1/jobs", {"queue": queue_of(case), "type": "bench.work", "payload": {}})
        wire.close()
    stand.tables.empty()
    if case.mode not in ("work", "worker"):
        return 0
    seed.fill(stand.tables, queue_of(case), {State.AVAILABLE: pace.seeded})
    return pace.seeded


def _wrong(stand: Stand, case: Case, counts: wrk.Counts, seeded: int) -> str:
    """What does not fit between what clients were told and what the database holds."""
    states = stand.states(queue_of(case))
    wanted = {
        "all jobs": (seeded + counts.acked, sum(states.values())),
        "succeeded": (counts.settled, states.get(State.SUCCEEDED, 0)),
        "running": (counts.claimed - counts.settled, states.get(State.RUNNING, 0)),
        "answers": (counts.sent, counts.got),
    }
    found = [f"{name}: {told} told, {there} there" for name, (told, there) in wanted.items() if told != there]
    if counts.refused:
        found.append(f"{counts.refused} refused, first: {counts.first_refusal}")
    if counts.socket_errors:
        found.append(f"{counts.socket_errors} socket errors")
    if case.mode in ("work", "worker") and not states.get(State.AVAILABLE, 0):
        found.append("the seeded work ran out; the figure is too low")
    return "; ".join(found)
