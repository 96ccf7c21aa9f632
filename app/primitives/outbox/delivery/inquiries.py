"""Asks the reconcilers of destinations with `reconcile: http` what became of unknown messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from app.clock import MICROS
from app.errors import Refusal
from app.ids import id_text
from app.outgoing.client import Outgoing
from app.outgoing.replies import Call
from app.outgoing.signatures import parse_secret, sign
from app.outgoing.vault import Vault
from app.primitives.outbox.model.finding import Inquiry, read_reply, unasked
from app.primitives.outbox.ops.inquiries import Take, Told
from app.primitives.outbox.ops.secrets import UNREADABLE, opened
from app.runtime.runtime import Runtime

log = structlog.get_logger("tenure.outbox.inquiries")

MOST_UNDER_WAY = 50


@dataclass(slots=True)
class Inquiries:
    """The inquiries of this process. One that hangs holds up no other: each is a task of its own."""

    runtime: Runtime
    under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(self) -> int:
        """Begin to ask about what is open, as far as there is room; gives how many inquiries were begun."""
        free = MOST_UNDER_WAY - len(self.under_way)
        if free <= 0 or self.runtime.draining.is_set():
            return 0
        inquiries: tuple[Inquiry, ...] = await self.runtime.lane("outbox.inquire").submit(Take(free))
        for inquiry in inquiries:
            task = asyncio.create_task(self._ask(inquiry), name=f"inquiry at {inquiry.destination}")
            self.under_way.add(task)
            task.add_done_callback(self._ended)
        return len(inquiries)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # its lease ends, and it is asked again
            log.error("inquiry_failed", error=type(fault).__name__, exc_info=fault)

    async def _ask(self, inquiry: Inquiry) -> None:
        try:
            signed = self._signed(inquiry)
        except UNREADABLE as fault:
            reading = unasked(f"the secrets of the destination cannot be read: {fault}")
        else:
            fields = {"content-type": "application/json", "accept": "application/json", **signed}
            timeout = self.runtime.settings.outbox_ask_timeout_seconds
            outgoing: Outgoing = self.runtime.state("outgoing")
            reading = read_reply(
                await outgoing.send(Call("POST", inquiry.url, fields, inquiry.body, timeout)), inquiry.url
            )
        with suppress(Refusal):  # the database is away, or this process ends: it is asked again
            await self.runtime.lane("outbox.inquired").submit(Told(inquiry, reading))
        log.info(
            "inquired", destination=inquiry.destination, message_id=id_text(inquiry.id), verdict=reading.verdict,
            reached=reading.reached,
        )  # fmt: skip

    def _signed(self, inquiry: Inquiry) -> dict[str, str]:
        """As deliveries to this destination are, where it has a secret. Its own headers are for its own URL alone."""
        vault: Vault = self.runtime.state("vault")
        now = self.runtime.clock.now()
        secrets = opened(vault, inquiry.destination, inquiry.sealed).signing_at(now)
        if not secrets:
            return {}
        return sign([parse_secret(one) for one in secrets], id_text(inquiry.id), now // MICROS, inquiry.body)

    async def stop(self) -> None:
        """What is under way is dropped: its lease ends, and it is asked again."""
        tasks = list(self.under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
