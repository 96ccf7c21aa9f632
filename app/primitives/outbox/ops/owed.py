"""Owed: messages that deaths of jobs record, in the transactions of those deaths. Nothing refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.db.tx import Tx
from app.ids import id_text
from app.primitives.jobs.ops.terminal import OwedMessage
from app.primitives.outbox.model.commands import NewMessage
from app.primitives.outbox.model.keys import fingerprint, key_digest
from app.primitives.outbox.ops.record import Recording


def record_owed(tx: Tx, owed: Sequence[OwedMessage]) -> None:
    """Record a message for each. Its key names the job and this death, so a job that dies again records another.

    Guarantee: in the caller's transaction, once for each death, as the death's own row decides. A destination that was not set
    refuses nothing: its messages wait there, and bear no repeat.
    """
    work = Recording(tx)
    for one in owed:
        work.make(_message(one), one.caller, tx.now)
    work.write()


def _message(one: OwedMessage) -> NewMessage:
    key = f"tenure:death-of:{id_text(one.job_id)}:{id_text(one.id)}"
    told: dict[str, Any] = {
        "schema_version": 1,
        "payload": one.payload,
        "occurred_at": None,
        "available_at": None,
        "ordering_key": None,
        "correlation_id": one.correlation_id,
        "target_reference": f"jobs/{id_text(one.job_id)}",
        "max_attempts": None,
    }
    return NewMessage(
        id=one.id,
        message_key=key,
        key_digest=key_digest(key),
        fingerprint=fingerprint(type_=one.type, destination=one.destination, **told),
        flow=(one.destination, one.type),
        **told,
    )
