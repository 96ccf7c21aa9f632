"""Can the database clear away what is finished? A transaction that somebody left open, a dump or a report, keeps it from that
for all tables, and every index slowly fills with the dead.

It is asked when `/health` or `/metrics` is, every few seconds at most, and by no request that does work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from app.clock import micros, steady_micros
from app.db.dialects.base import OpenTransactions
from app.db.upkeep import Clearing
from app.errors import Refusal
from app.runtime.checks import Check

TRANSACTION, JOURNAL = "database.oldest_transaction", "database.journal"
SHARED_FOR = micros(5)
WAIT_SECONDS = 2.0


class ClearingWatch:
    """What the database last told. One question at a time, whoever asks."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._asked = 0
        self._answer: asyncio.Future[Any] | None = None
        self.last: Clearing | None = None  # None before the first answer, and while the database does not tell

    def ask(self) -> asyncio.Future[Any]:
        """The answer, a `Clearing` or a Refusal, to a question that is at most `SHARED_FOR` old."""
        answer = self._answer
        if answer is None or (answer.done() and steady_micros() - self._asked >= SHARED_FOR):
            answer = self._answer = self._runtime.lane("service.clearing").put(None)
            answer.add_done_callback(self._keep)
            self._asked = steady_micros()
        return answer

    def _keep(self, answer: asyncio.Future[Any]) -> None:
        told = None if answer.cancelled() else answer.result()
        self.last = told if isinstance(told, Clearing) else None


async def checks(runtime: Any) -> list[Check]:
    """`warn` above the thresholds of the settings. What cannot be seen is `unknown`, which is no fault of the service."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            told = await asyncio.shield(runtime.state("clearing").ask())
    except TimeoutError:
        return [_unknown(f"no answer within {WAIT_SECONDS:g} seconds")]
    except Refusal as refusal:
        return [_unknown(refusal.code.name)]
    return [_unknown(told.code.name)] if isinstance(told, Refusal) else list(_judge(told, runtime.settings))


def _judge(told: Clearing, settings: Any) -> Iterator[Check]:
    if told.transactions is not None:
        yield _judge_age(told.transactions, settings.health_transaction_seconds)
    if told.journal_bytes is not None:
        yield _judge_journal(told.journal_bytes, settings.health_journal_bytes)


def _judge_age(seen: OpenTransactions, most: float) -> Check:
    age = seen.oldest_seconds
    if age is None:
        return _unknown(f"not shown: {seen.hidden}")
    if age > most:
        why = f"a transaction has been open for {age:.0f} seconds, more than {most:g}: finished rows stay until it ends"
        return Check(TRANSACTION, "warn", round(age, 3), "seconds", why)
    return Check(TRANSACTION, "pass", round(age, 3), "seconds", seen.hidden and f"not shown: {seen.hidden}")


def _judge_journal(size: int, most: int) -> Check:
    if size > most:
        return Check(JOURNAL, "warn", size, "bytes", f"the journal is larger than {most} bytes: a reader holds it")
    return Check(JOURNAL, "pass", size, "bytes")


def _unknown(why: str) -> Check:
    return Check(TRANSACTION, "pass", None, "seconds", f"unknown: {why}")


def collect(runtime: Any) -> Iterator[Metric]:
    """From memory alone. What has become old is asked for anew; the next scrape finds it."""
    watch: ClearingWatch = runtime.state("clearing")
    with suppress(Refusal):  # too much is waiting in this process, or it ends; what is known is told
        _ = watch.ask()
    told = watch.last
    if told is not None and told.transactions is not None and told.transactions.oldest_seconds is not None:
        yield GaugeMetricFamily(
            "tenure_database_oldest_transaction_seconds",
            "How long the oldest transaction of anybody has been open in the database; 0 if none is.",
            value=told.transactions.oldest_seconds,
        )
    if told is not None and told.journal_bytes is not None:
        yield GaugeMetricFamily(
            "tenure_database_journal_bytes", "Size of the embedded database's journal.", value=told.journal_bytes
        )
