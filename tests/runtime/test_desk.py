"""The desk: waiting claims cost nothing, the one that waited longest is served first, and who has left is given nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.errors import OVERLOADED, Refusal
from app.runtime.desk import ROUND_CLAIMS, Desk, DeskPorts

pytestmark = pytest.mark.anyio

SECONDS = 30
NEVER = 3600.0


@dataclass(frozen=True)
class Wish:
    """A claim as the desk sees one."""

    name: str
    places: Sequence[Hashable] = ("q",)
    identity: Hashable | None = None
    limit: int = 1

    def wants(self, flow: Hashable) -> bool:
        return flow in self.places


@dataclass
class Store:
    """The other side of the desk: a stock of things by place, handed out a round at a time."""

    stock: dict[str, list[str]] = field(default_factory=dict)
    rounds: list[list[str]] = field(default_factory=list)
    peeks: list[list[Hashable]] = field(default_factory=list)
    returned: list[list[str]] = field(default_factory=list)
    fault: Exception | None = None
    return_fault: Exception | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.go.set()

    async def serve(self, wishes: list[Wish]) -> Sequence[Any]:
        self.rounds.append([wish.name for wish in wishes])
        self.entered.set()
        await self.go.wait()
        await self.tell()
        if self.fault is not None:
            raise self.fault
        outcomes: list[Any] = []
        for wish in wishes:
            found: list[str] = []
            for place in wish.places:
                shelf = self.stock.get(str(place), [])
                while shelf and len(found) < wish.limit:
                    found.append(shelf.pop(0))
            outcomes.append(found)
        return outcomes

    async def peek(self, places: list[Hashable]) -> Sequence[Hashable]:
        self.peeks.append(places)
        await self.tell()
        return [place for place in places if self.stock.get(str(place))]

    async def give_back(self, outcome: list[str]) -> None:
        self.returned.append(outcome)
        if self.return_fault is not None:
            raise self.return_fault
        for thing in outcome:
            self.stock.setdefault("q", []).append(thing)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(condition)


@pytest.fixture
async def counter() -> Store:
    return Store()


@pytest.fixture
async def make_desk(counter: Store) -> AsyncIterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(*, poll_seconds: float = NEVER, capacity: int = 5000, deadline_seconds: float = SECONDS) -> Desk:
        ports = DeskPorts(counter.serve, counter.peek, counter.give_back, bool)
        desk = Desk(ports, poll_seconds, capacity, deadline_seconds, asyncio.Event())
        desk.start()
        desks.append(desk)
        return desk

    yield make
    for desk in desks:
        desk.draining.set()
        await desk.stop()


@pytest.fixture
async def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


def stays() -> bool:
    return False


async def waiting(
    desk: Desk, counter: Store, *wishes: Wish, gone: Callable[[], bool] = stays
) -> list[asyncio.Task[Any]]:
    """Tasks of claims that have been tried once, in vain, and wait now."""
    before = sum(len(one) for one in counter.rounds)
    tasks = [asyncio.create_task(desk.claim(wish, NEVER, gone)) for wish in wishes]
    await counter.until(lambda: sum(len(one) for one in counter.rounds) - before >= len(wishes))
    await settled(desk, counter, len(wishes))
    return tasks


async def settled(desk: Desk, counter: Store, least: int) -> None:
    """Return when the round under way has put its claims back."""
    async with asyncio.timeout(SECONDS), desk._at_round:
        assert len(desk) >= least


async def told(task: asyncio.Task[Any]) -> Any:
    return await asyncio.wait_for(task, SECONDS)


# -- who is served ---------------------------------------------------------------------------------------------------------


async def test_a_claim_finds_work_that_is_there_at_once(desk: Desk, counter: Store) -> None:
    counter.stock = {"q": ["a", "b"]}
    assert await desk.claim(Wish("w", limit=2), 0, stays) == ["a", "b"]
    assert await desk.claim(Wish("w"), 0, stays) is None
    assert counter.rounds == [["w"], ["w"]]
    assert counter.returned == []
    assert len(desk) == 0


async def test_a_waiting_claim_is_answered_as_soon_as_there_is_work(desk: Desk, counter: Store) -> None:
    (task,) = await waiting(desk, counter, Wish("w"))
    counter.stock = {"q": ["a"]}
    desk.wake({"q": 1})
    assert await told(task) == ["a"]


async def test_a_claim_whose_wait_ends_is_answered_empty(desk: Desk, counter: Store) -> None:
    assert await desk.claim(Wish("w"), 0.01, stays) is None
    assert len(desk) == 0


async def test_a_claim_that_was_never_tried_is_tried_although_its_wait_has_ended(desk: Desk, counter: Store) -> None:
    counter.go.clear()
    first = asyncio.create_task(desk.claim(Wish("first"), 0, stays))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    second = asyncio.create_task(desk.claim(Wish("second"), 0.001, stays))
    counter.stock = {"q": ["a", "b"]}
    done, _ = await asyncio.wait({second}, timeout=0.01)
    assert not done
    counter.go.set()
    assert sorted([await told(first), await told(second)]) == [["a"], ["b"]]


async def test_the_one_that_waited_longest_is_served_first(desk: Desk, counter: Store) -> None:
    tasks = await waiting(desk, counter, *(Wish(f"w{number}") for number in range(5)))
    for number in range(5):
        counter.stock = {"q": [f"job {number}"]}
        desk.wake({"q": 1})
        assert await told(tasks[number]) == [f"job {number}"]


async def test_a_claim_that_got_nothing_keeps_its_place_before_newcomers(desk: Desk, counter: Store) -> None:
    (old,) = await waiting(desk, counter, Wish("old"))
    desk.wake({"q": 1})  # in vain: another replica was quicker
    await counter.until(lambda: counter.rounds[-1] == ["old"] and len(counter.rounds) == 2)
    (new,) = await waiting(desk, counter, Wish("new"))
    counter.stock = {"q": ["a"]}
    desk.wake({"q": 1})
    assert await told(old) == ["a"]
    assert not new.done()


async def test_newcomers_that_got_nothing_stand_behind_those_who_wait_for_longer(desk: Desk, counter: Store) -> None:
    tasks = [task for number in range(4) for task in await waiting(desk, counter, Wish(f"w{number}"))]
    assert [wish.name for wish in desk.waiting()] == ["w0", "w1", "w2", "w3"]
    counter.stock = {"q": ["a", "b"]}
    desk.wake({"q": 2})
    assert [await told(task) for task in tasks[:2]] == [["a"], ["b"]]
    assert not any(task.done() for task in tasks[2:])


async def test_only_as_many_are_called_up_as_there_is_work_for_them(desk: Desk, counter: Store) -> None:
    await waiting(desk, counter, *(Wish(f"w{number}") for number in range(20)))
    counter.stock = {"q": ["a", "b", "c"]}
    rounds = len(counter.rounds)
    desk.wake({"q": 3})
    await counter.until(lambda: len(counter.rounds) > rounds)
    assert counter.rounds[rounds:] == [["w0", "w1", "w2"]]


async def test_one_that_takes_many_is_called_up_alone(desk: Desk, counter: Store) -> None:
    await waiting(desk, counter, Wish("many", limit=10), Wish("one"))
    rounds = len(counter.rounds)
    counter.stock = {"q": ["a"]}
    desk.wake({"q": 5})
    await counter.until(lambda: len(counter.rounds) > rounds)
    assert counter.rounds[rounds:] == [["many"]]


async def test_nobody_is_called_up_for_work_that_he_did_not_ask_for(desk: Desk, counter: Store) -> None:
    other, mine = await waiting(desk, counter, Wish("other", places=("other",)), Wish("mine"))
    counter.stock = {"q": ["a"]}
    rounds = len(counter.rounds)
    desk.wake({"q": 1, "third": 7})
    assert await told(mine) == ["a"]
    assert counter.rounds[rounds:] == [["mine"]]
    assert not other.done()


async def test_many_newcomers_share_rounds_of_a_bounded_size_and_none_is_forgotten(desk: Desk, counter: Store) -> None:
    count = 2 * ROUND_CLAIMS + 10
    counter.stock = {"q": [str(number) for number in range(count)]}
    answers = await asyncio.gather(*(desk.claim(Wish(str(number)), 0, stays) for number in range(count)))
    assert answers == [[str(number)] for number in range(count)]
    assert max(len(one) for one in counter.rounds) <= ROUND_CLAIMS


async def test_work_that_comes_while_a_round_is_under_way_calls_up_the_next(desk: Desk, counter: Store) -> None:
    counter.go.clear()
    task = asyncio.create_task(desk.claim(Wish("w"), NEVER, stays))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    desk.wake({"q": 1})  # for something that this round does not see any more
    counter.go.set()
    await counter.until(lambda: len(counter.rounds) == 2)
    assert counter.rounds == [["w"], ["w"]]
    counter.stock = {"q": ["a"]}
    desk.wake({"q": 1})
    assert await told(task) == ["a"]


# -- who has left ----------------------------------------------------------------------------------------------------------


async def test_a_caller_that_hung_up_before_the_round_is_given_nothing(desk: Desk, counter: Store) -> None:
    left: list[bool] = []
    (first,) = await waiting(desk, counter, Wish("gone"), gone=lambda: bool(left))
    (second,) = await waiting(desk, counter, Wish("stays"))
    left.append(True)
    counter.stock = {"q": ["a"]}
    rounds = len(counter.rounds)
    desk.wake({"q": 2})
    assert await told(first) is None
    assert await told(second) == ["a"]
    assert counter.rounds[rounds:] == [["stays"]]
    assert counter.returned == []


async def test_what_was_claimed_for_a_caller_that_left_meanwhile_is_given_back(desk: Desk, counter: Store) -> None:
    left: list[bool] = []
    counter.go.clear()
    counter.stock = {"q": ["a", "b"]}
    gone = asyncio.create_task(desk.claim(Wish("gone"), NEVER, lambda: bool(left)))
    stays_ = asyncio.create_task(desk.claim(Wish("stays"), NEVER, stays))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    left.append(True)
    counter.go.set()
    assert await told(gone) is None
    assert await told(stays_) == ["b"]
    assert counter.returned == [["a"]]


async def test_what_was_claimed_for_a_cancelled_request_is_given_back(desk: Desk, counter: Store) -> None:
    counter.go.clear()
    counter.stock = {"q": ["a"]}
    task = asyncio.create_task(desk.claim(Wish("w"), NEVER, stays))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    counter.go.set()
    await desk.stop()
    assert counter.returned == [["a"]]
    assert len(desk) == 0


async def test_a_give_back_that_fails_takes_nothing_from_the_others(desk: Desk, counter: Store) -> None:
    left: list[bool] = []
    counter.go.clear()
    counter.return_fault = Refusal(OVERLOADED, "Full.")
    counter.stock = {"q": ["a", "b"]}
    gone = asyncio.create_task(desk.claim(Wish("gone"), NEVER, lambda: bool(left)))
    stays_ = asyncio.create_task(desk.claim(Wish("stays"), NEVER, stays))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    left.append(True)
    counter.go.set()
    assert await told(stays_) == ["b"]
    assert await told(gone) is None


async def test_the_same_claim_again_takes_the_place_of_the_first(desk: Desk, counter: Store) -> None:
    (first,) = await waiting(desk, counter, Wish("first", identity="claim-1"))
    (other,) = await waiting(desk, counter, Wish("other", identity="claim-2"))
    (second,) = await waiting(desk, counter, Wish("second", identity="claim-1"))
    assert await told(first) is None
    assert len(desk) == 2
    counter.stock = {"q": ["a", "b"]}
    desk.wake({"q": 2})
    assert sorted([await told(other), await told(second)]) == [["a"], ["b"]]


# -- faults, limits, the end -----------------------------------------------------------------------------------------------


async def test_a_refused_round_is_told_to_its_claims_and_the_desk_goes_on(desk: Desk, counter: Store) -> None:
    counter.fault = Refusal(OVERLOADED, "Full.", retry_after_seconds=1)
    with pytest.raises(Refusal) as refused:
        await desk.claim(Wish("w"), NEVER, stays)
    assert refused.value.code is OVERLOADED
    counter.fault = None
    counter.stock = {"q": ["a"]}
    assert await desk.claim(Wish("w"), 0, stays) == ["a"]


async def test_a_fault_in_a_round_is_told_to_its_claims_and_the_desk_goes_on(desk: Desk, counter: Store) -> None:
    counter.fault = ZeroDivisionError()
    assert await asyncio.wait_for(desk.claim(Wish("w"), NEVER, stays), SECONDS) is None
    counter.fault = None
    counter.stock = {"q": ["a"]}
    assert await desk.claim(Wish("w"), 0, stays) == ["a"]


async def test_more_claims_than_may_wait_are_refused(make_desk: Callable[..., Desk], counter: Store) -> None:
    desk = make_desk(capacity=2)
    await waiting(desk, counter, Wish("a"), Wish("b"))
    with pytest.raises(Refusal) as refused:
        await desk.claim(Wish("c"), NEVER, stays)
    assert (refused.value.code, refused.value.retry_after_seconds) == (OVERLOADED, 1)


async def test_when_the_process_drains_every_waiting_claim_is_answered_at_once(desk: Desk, counter: Store) -> None:
    tasks = await waiting(desk, counter, *(Wish(str(number)) for number in range(10)))
    desk.draining.set()
    assert await asyncio.wait_for(asyncio.gather(*tasks), SECONDS) == [None] * 10
    rounds = len(counter.rounds)
    counter.stock = {"q": ["a"]}
    assert await desk.claim(Wish("late"), NEVER, stays) is None
    assert len(counter.rounds) == rounds


async def test_a_round_that_is_under_way_when_the_desk_ends_is_finished(desk: Desk, counter: Store) -> None:
    counter.go.clear()
    counter.stock = {"q": ["a"]}
    served, empty = (asyncio.create_task(desk.claim(Wish(name), NEVER, stays)) for name in ("served", "empty"))
    await asyncio.wait_for(counter.entered.wait(), SECONDS)
    desk.draining.set()
    stopping = asyncio.create_task(desk.stop())
    await asyncio.sleep(0)
    counter.go.set()
    await asyncio.wait_for(stopping, SECONDS)
    assert await told(served) == ["a"]
    assert await told(empty) is None


# -- the poll --------------------------------------------------------------------------------------------------------------


async def test_the_poll_finds_what_other_replicas_made_available(
    make_desk: Callable[..., Desk], counter: Store
) -> None:
    desk = make_desk(poll_seconds=0.01)
    (task,) = await waiting(desk, counter, Wish("w"))
    counter.stock = {"q": ["a"]}
    assert await told(task) == ["a"]


async def test_the_poll_outlives_its_faults(make_desk: Callable[..., Desk], counter: Store) -> None:
    desk = make_desk(poll_seconds=0.01)
    whole = desk.ports.peek
    faults: list[Exception] = [Refusal(OVERLOADED, "Full."), ZeroDivisionError()]

    async def peek(places: list[Hashable]) -> Sequence[Hashable]:
        if faults:
            raise faults.pop()
        return await whole(places)

    desk.ports.peek = peek
    (task,) = await waiting(desk, counter, Wish("w"))
    counter.stock = {"q": ["a"]}
    assert await told(task) == ["a"]
    assert faults == []


async def test_a_thousand_idle_claims_cost_one_look_a_tick_and_no_thread(
    make_desk: Callable[..., Desk], counter: Store
) -> None:
    desk = make_desk(poll_seconds=0.01)
    threads, tasks = threading.active_count(), len(asyncio.all_tasks())
    claims = await waiting(
        desk, counter, *(Wish(str(number), places=("q", f"q{number % 10}")) for number in range(1000))
    )
    rounds = len(counter.rounds)
    looks = len(counter.peeks)
    await counter.until(lambda: len(counter.peeks) >= looks + 3)
    assert threading.active_count() == threads
    assert len(asyncio.all_tasks()) - tasks <= 1000 + 2
    assert len(counter.rounds) == rounds, "an idle claim costs no round"
    assert all(len(places) == len(set(places)) == 11 for places in counter.peeks[looks:])
    desk.draining.set()
    assert await asyncio.wait_for(asyncio.gather(*claims), SECONDS) == [None] * 1000


async def test_a_desk_without_claims_looks_at_nothing(make_desk: Callable[..., Desk], counter: Store) -> None:
    desk = make_desk(poll_seconds=0.001)
    assert await desk.claim(Wish("w"), 0, stays) is None
    looks = len(counter.peeks)
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.02, done.set_result, None)
    await done
    assert len(counter.peeks) - looks <= 1
