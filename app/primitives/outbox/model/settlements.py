"""How a settlement is made, by a request or by the service itself. Pure."""

from __future__ import annotations

from app.clock import micros
from app.primitives.outbox.model.commands import Settlement
from app.primitives.outbox.model.states import Outcome, ReleaseReason
from app.reservations import settlement_digest


def make_settlement(
    message_id: bytes,
    token: str,
    outcome: Outcome,
    *,
    reference: str | None = None,
    category: str | None = None,
    message: str | None = None,
    delay: float | None = None,
    reason: ReleaseReason | None = None,
    again_if_idempotent: bool = False,
) -> Settlement:
    """The digest is over the content alone, in one order, so that every way to settle the same gives the same. `delay` in
    seconds. `again_if_idempotent`: a doubt that a destination declared idempotent takes as a retry.
    """
    digest = settlement_digest(
        outcome.value, reference, category, message, delay, reason and reason.value, again_if_idempotent or None
    )
    return Settlement(
        id=message_id,
        token=token,
        outcome=outcome,
        digest=digest,
        reference=reference,
        category=category,
        message=message,
        delay=None if delay is None else micros(delay),
        reason=reason,
        again_if_idempotent=again_if_idempotent,
    )
