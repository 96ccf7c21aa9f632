"""Terms: what contracts promise of job types. They are put here by whoever keeps the contracts, and the database decides.

Every enqueue reads the revisions of its types in its own transaction, so a changed contract is in force with its commit, on
every replica. What a revision says is read and compiled once in each process: a revision is a digest of its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from app.clock import micros
from app.db.tx import Tx
from app.primitives.jobs.model import Flow, NewJob
from app.primitives.jobs.model.payloads import PayloadSchema, check_schema
from app.primitives.jobs.model.terms import Handler, Known, Pair, Rules, Terms
from app.primitives.jobs.ops import flows
from app.primitives.jobs.store import terms as store

__all__ = ["TermsNotUsable", "can_handle", "check_schema", "known", "put", "read", "rules", "start_of"]

_NOTHING = Terms("", 0)  # what is promised of a type without a contract

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Terms).decode


class TermsNotUsable(ValueError):
    """These terms promise what jobs cannot keep. `field` is the one at fault, `detail` what is wanted there."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field} {detail}")
        self.field = field
        self.detail = detail


def can_handle(handler: Handler) -> str | None:
    """Why nothing could carry this handler out, in one line; None if jobs can."""
    if not (handler.queue or handler.destination) or not handler.type:
        return "must name the queue and the type of the job that it enqueues, or the destination and the type of the message"
    return None


def put(tx: Tx, terms: Terms) -> None:
    """Set the terms of a type and version, in force with the caller's commit for every enqueue that begins after it.

    Guarantee: repeatable; the same terms are the same revision. Raises: TermsNotUsable for a handler that nothing can carry
    out and for a payload schema that does not compile.
    """
    if terms.handler is not None and (fault := can_handle(terms.handler)) is not None:
        raise TermsNotUsable("handler", fault)
    if terms.payload_schema is not None and (fault := check_schema(terms.payload_schema)) is not None:
        raise TermsNotUsable("payload_schema", fault)
    text = _encode(terms)
    store.upsert_terms(
        tx,
        {
            "type": terms.type,
            "schema_version": terms.schema_version,
            "revision": hashlib.sha256(text).digest(),
            "terms": text,
            "updated_at": tx.now,
        },
    )


def read(tx: Tx, pairs: Iterable[Pair]) -> dict[Pair, Terms]:
    """The terms of those (type, version) pairs that have some."""
    return {pair: one.terms for pair, one in known(tx, pairs).items()}


def known(tx: Tx, pairs: Iterable[Pair]) -> dict[Pair, Known]:
    """The same with their compiled schemas. One statement; one more where this process meets a revision for the first time.

    Race: a revision that changes between the two statements is taken as the second one finds it.
    """
    wanted = set(pairs)
    if not wanted:
        return {}
    seen = flows.here(tx).terms
    now = {
        (row.type, row.schema_version): bytes(row.revision)
        for row in store.select_revisions(tx, sorted({type_ for type_, _ in wanted}))
    }
    there = now.keys() & wanted
    fresh = {pair for pair in there if pair not in seen or seen[pair].revision != now[pair]}
    found = {pair: seen[pair] for pair in there - fresh}
    for row in store.select_terms(tx, sorted({type_ for type_, _ in fresh})) if fresh else ():
        pair = (row.type, row.schema_version)
        if pair in fresh:
            found[pair] = seen[pair] = _known(bytes(row.revision), bytes(row.terms))
    return found


def _known(revision: bytes, text: bytes) -> Known:
    terms = _decode(text)
    return Known(revision, terms, None if terms.payload_schema is None else PayloadSchema(terms.payload_schema))


def rules(tx: Tx, wanted: Iterable[Flow]) -> dict[Flow, Rules]:
    """For each flow, what decides over attempts that do not succeed. Reads nothing for no flow."""
    asked = set(wanted)
    found = read(tx, {(type_, version) for _, type_, version in asked})
    return {flow: _rules(tx, found.get(flow[1:], _NOTHING)) for flow in asked}


def _rules(tx: Tx, terms: Terms) -> Rules:
    settings = tx.host.settings
    return Rules(
        backoff=terms.backoff or settings.jobs_backoff_seconds,
        on_lease_loss=terms.on_lease_loss or settings.jobs_on_lease_loss,
        max_lease_losses=terms.max_lease_losses or settings.jobs_max_lease_losses,
        max_exceptions=terms.max_exceptions,
        lease=terms.lease,
    )


@dataclass(frozen=True, slots=True)
class Start:
    """What a new job begins with: as enqueued, else by its type's terms, else by the settings."""

    available_at: int
    max_attempts: int | None  # None: no ceiling
    timeout: int
    retry_until: int | None
    lease: int | None


def start_of(tx: Tx, new: NewJob, terms: Terms | None) -> Start:
    promised = terms or _NOTHING
    now, settings = tx.now, tx.host.settings
    delay = new.delay if new.debounce is None else new.debounce.delay
    at = new.available_at if new.available_at is not None else now + (delay or 0)
    if (
        new.debounce is None
    ):  # an overdue one keeps its moment: or every further enqueue sent it to the back of its queue
        at = max(now, at)
    most = new.max_attempts
    if most is None and not promised.unlimited:
        most = promised.max_attempts or settings.jobs_max_attempts
    until = new.retry_until
    if until is None and promised.retry_until is not None:
        until = at + promised.retry_until
    timeout = new.timeout or promised.timeout or micros(settings.jobs_timeout_seconds)
    return Start(at, most, timeout, until, promised.lease)
