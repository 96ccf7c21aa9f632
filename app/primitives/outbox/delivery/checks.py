"""Asks producers about messages that they prepared and did not decide in time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from app.errors import Refusal
from app.ids import id_text
from app.outgoing.client import Outgoing
from app.outgoing.headers import header_text
from app.outgoing.replies import Call
from app.primitives.outbox.model.checks import read
from app.primitives.outbox.ops.checks import Question, Take, Told
from app.runtime.runtime import Runtime

log = structlog.get_logger("tenure.outbox.checks")

MOST_UNDER_WAY = 50


@dataclass(slots=True)
class Checks:
    """The questions of this process. One that hangs holds up no other: each is a task of its own."""

    runtime: Runtime
    under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(self) -> int:
        """Begin to ask what is due, as far as there is room; gives how many questions were begun."""
        free = MOST_UNDER_WAY - len(self.under_way)
        if free <= 0 or self.runtime.draining.is_set():
            return 0
        questions: tuple[Question, ...] = await self.runtime.lane("outbox.check_take").submit(Take(free))
        for question in questions:
            task = asyncio.create_task(self._ask(question), name="outbox check")
            self.under_way.add(task)
            task.add_done_callback(self._ended)
        return len(questions)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # it is asked again once the message's next look has come
            log.error("check_failed", error=type(fault).__name__, exc_info=fault)

    async def _ask(self, question: Question) -> None:
        outgoing: Outgoing = self.runtime.state("outgoing")
        reply = await outgoing.send(
            Call(
                "GET",
                question.url,
                {
                    "accept": "application/json, text/plain",
                    "tenure-message-id": id_text(question.id),
                    "tenure-message-key": header_text(question.message_key),
                },
                timeout_seconds=self.runtime.settings.outbox_ask_timeout_seconds,
            )
        )
        answer = read(reply)
        with suppress(Refusal):  # the database is away, or this process ends: it is asked again
            await self.runtime.lane("outbox.check_tell").submit(Told(question.id, answer))
        log.info("checked", message_id=id_text(question.id), answer=answer.said, decision=answer.decision)

    async def stop(self) -> None:
        """A question changes nothing: what is under way is dropped."""
        tasks = list(self.under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
