"""Reconcilers: they take unknown messages under a reservation of their own, and say what they found out.

A reservation of a doubt is none of the message: it can settle nothing, and no claim of messages sees what is unknown. Every
try costs one of the destination's budget; once that is spent, only an operator decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app import reservations
from app.clock import backoff, micros
from app.db.tx import Tx
from app.errors import STATE_CONFLICT, Refusal, not_found
from app.ids import new_id
from app.primitives.outbox.model.commands import Claim
from app.primitives.outbox.model.destinations import Destination, ReconcileMode
from app.primitives.outbox.model.finding import ClaimedDoubts, Doubtful, Finding, Found
from app.primitives.outbox.model.records import Reconcile
from app.primitives.outbox.model.states import Doubt, Kind, State
from app.primitives.outbox.ops import control, destinations, flows, moves
from app.primitives.outbox.ops.records import message_of, told
from app.primitives.outbox.ops.refusals import lost, out_of_pattern
from app.primitives.outbox.store import doubts as store
from app.primitives.outbox.store import flows as flow_store
from app.primitives.outbox.store import held, work
from app.reservations import Grant, settled_otherwise

LOST_CLAIM_KEPT = micros(3600)


def thing(message_id: bytes) -> bytes:
    """What a token of a doubt is bound to, so that it is no token of the message."""
    return b"doubt\0" + message_id


def budget_of(tx: Tx, destination: Destination) -> int:
    return destination.reconcile_budget or int(tx.host.settings.outbox_reconcile_budget)


# -- claim -----------------------------------------------------------------------------------------------------------------


def claim(tx: Tx, commands: Sequence[Claim]) -> list[ClaimedDoubts | Refusal]:
    """open -> held for as many unknown messages as each claim asks for, the longest unknown first.

    Guarantee: each goes to one claim; a repeated `claim_id` gets its grants again while they are held. Race: rows that another
    replica has locked are skipped. Raises: as a value `state_conflict` for a destination that the service itself asks.
    """
    if tx.repeated and (recalled := _recall(tx)) is not None:
        return recalled
    grant = reservations.mint_grant()
    taken: list[tuple[bytes, ...]] = []
    answers = [_claim(tx, command, grant, taken) for command in commands]
    tx.memo["doubts"] = (grant, taken)
    return answers


def _claim(tx: Tx, command: Claim, grant: Grant, taken: list[tuple[bytes, ...]]) -> ClaimedDoubts | Refusal:
    taken.append(())
    known = destinations.read(tx, command.destinations)
    asked = [name for name, one in known.items() if one.reconcile.mode is not ReconcileMode.MANUAL]
    if asked:
        why = "The service itself finds out for a destination of this claim; see its `reconcile.mode`. Claim from the others."
        return Refusal(STATE_CONFLICT, why, extra={"destinations": sorted(asked)})
    if command.claim_id is not None and (replayed := _replay(tx, command, known)):
        return ClaimedDoubts(replayed, replayed=True)
    ids = _take(tx, command, grant)
    taken[-1] = tuple(ids)
    if ids and command.claim_id is not None:
        _remember(tx, command, grant, ids)
    return ClaimedDoubts(_granted(tx, grant, ids, known))


def _take(tx: Tx, command: Claim, grant: Grant) -> list[bytes]:
    ids: list[bytes] = []
    rank = {name: place for place, name in enumerate(command.destinations)}
    rows = [row for row in flow_store.select_flows_of(tx, list(rank)) if command.handles(row.type)]
    by_id = {row.id: rank[row.destination] for row in rows}
    for flow_id in sorted(store.select_open_flows(tx, list(by_id)) if by_id else (), key=lambda one: by_id[one]):
        if len(ids) < command.limit:
            ids += [bytes(row.message_id) for row in store.lock_open(tx, flow_id, command.limit - len(ids))]
    if not ids:
        return []
    lease = _lease(tx, command)
    held_by = {"due_at": tx.now + lease, "lease_micros": lease, "worker": command.worker, "grant_digest": grant.digest}
    if store.update_taken(tx, ids, held_by | {"job_id": None}, spent=1) != len(ids):
        # this server did not hold the locks that it gave: the write alone decides who has what
        mine = {bytes(row.message_id) for row in store.select_granted(tx, grant.digest, ids)}
        ids = [one for one in ids if one in mine]
    return ids


def _lease(tx: Tx, command: Claim) -> int:
    return micros(tx.host.settings.jobs_lease_seconds) if command.lease is None else command.lease


def _granted(tx: Tx, grant: Grant, ids: Sequence[bytes], known: dict[str, Destination]) -> tuple[Doubtful, ...]:
    """What this grant still holds of these, in their order."""
    held_rows = {bytes(row.message_id): row for row in store.select_granted(tx, grant.digest, ids)} if ids else {}
    live = [one for one in ids if one in held_rows and held_rows[one].due_at > tx.now]
    rows = {bytes(row.id): row for row in work.select_messages(tx, live)} if live else {}
    contents = {bytes(row.message_id): row for row in work.select_contents(tx, live)} if live else {}
    names = flows.Names(tx)
    return tuple(
        Doubtful(
            message=told(message_of(rows[one], names), contents[one]),
            payload=bytes(contents[one].payload),
            traceparent=contents[one].traceparent,
            unknown_since=held_rows[one].opened_at,
            asked=held_rows[one].attempt,
            budget=budget_of(tx, known.get(names[rows[one].flow_id][0], Destination(""))),
            token=reservations.token(tx.host.token_key, grant, thing(one), held_rows[one].fence),
            fence=held_rows[one].fence,
            expires_at=held_rows[one].due_at,
        )
        for one in live
    )


def _recall(tx: Tx) -> list[ClaimedDoubts | Refusal] | None:
    """An earlier try of this unit may have been committed: if any of its doubts carries its grant, all of it was."""
    grant, taken = tx.memo.get("doubts", (None, []))
    ids = [one for those in taken for one in those]
    if not ids or not store.select_granted(tx, grant.digest, ids):
        return None
    names = flows.Names(tx)
    known = destinations.read(tx, {names[row.flow_id][0] for row in work.select_messages(tx, ids)})
    return [ClaimedDoubts(_granted(tx, grant, those, known)) for those in taken]


def _replay(tx: Tx, command: Claim, known: dict[str, Destination]) -> tuple[Doubtful, ...]:
    digest = _digest(command)
    for row in work.lock_claims(tx, [digest]):
        grant = reservations.unseal(
            tx.host.token_key, row.sealed, row.grant_digest, command.caller.principal.key_id, command.claim_id or ""
        )
        ids = [bytes(row.message_ids[place : place + 16]) for place in range(0, len(row.message_ids), 16)]
        if grant is not None and (grants := _granted(tx, grant, ids, known)):
            return grants
        work.delete_claims(tx, [digest])
    return ()


def _digest(command: Claim) -> bytes:
    return reservations.claim_digest(command.caller.principal.key_id, "doubts\0" + (command.claim_id or ""))


def _remember(tx: Tx, command: Claim, grant: Grant, ids: Sequence[bytes]) -> None:
    sealed = reservations.seal(tx.host.token_key, grant, command.caller.principal.key_id, command.claim_id or "")
    row = {
        "digest": _digest(command),
        "sealed": sealed,
        "grant_digest": grant.digest,
        "message_ids": b"".join(ids),
        "purge_at": tx.now + _lease(tx, command) + LOST_CLAIM_KEPT,
    }
    work.insert_claims(tx, [row])


def give_back(tx: Tx, commands: Sequence[ClaimedDoubts]) -> list[int]:
    """held -> open for grants that reached nobody; they have cost nothing."""
    for claimed in commands:
        by_grant: dict[bytes, list[bytes]] = {}
        for grant in claimed.grants:
            token = reservations.present(grant.token)
            if token is not None:
                by_grant.setdefault(token.digest, []).append(grant.message.id)
        for digest, ids in by_grant.items():
            store.update_given_back(tx, digest, sorted(ids))
    return [len(claimed.grants) for claimed in commands]


def peek(tx: Tx, names: list[str]) -> list[tuple[str, str]]:
    """The flows of these destinations that have open doubts now."""
    return [(row.destination, row.type) for row in store.select_open_names(tx, names)]


# -- what was found out ----------------------------------------------------------------------------------------------------


def find(tx: Tx, commands: Sequence[Finding]) -> list[Found | Refusal]:
    """A verdict on an unknown message, or that it could not be found out.

    Guarantee: counts only with the token of the doubt's newest, unexpired reservation, once, and only while nobody else has
    decided: an operator, or a late answer that counts. Verdicts are audited with their evidence and actor. The same again is
    `replayed`, other content `settlement_conflict`, anything else `reservation_lost`.
    """
    ids = sorted({command.id for command in commands})
    rows = {bytes(row.id): row for row in held.lock_messages(tx, ids)}
    return [_find(tx, command, rows.get(command.id)) for command in commands]


def _find(tx: Tx, command: Finding, row: Any) -> Found | Refusal:
    if row is None:
        return not_found("message")
    if not command.caller.principal.allows(flows.Names(tx)[row.flow_id][0]):
        return out_of_pattern()
    token = reservations.present(command.token)
    if token is None:
        return lost("unknown_token")
    doubt = next(iter(store.lock_doubts(tx, [command.id])), None)
    if doubt is None:
        return _late(tx, command, token.digest, None, newest=False)
    newest = reservations.matches(tx.host.token_key, token, doubt.grant_digest, thing(command.id), doubt.fence)
    if newest and doubt.state == Doubt.HELD and doubt.due_at > tx.now:
        _apply(tx, row, doubt, command, token.digest)
        return _found(tx, command.id)
    return _late(tx, command, token.digest, doubt, newest=newest)


def _apply(tx: Tx, row: Any, doubt: Any, command: Finding, grant_digest: bytes) -> None:
    tx.memo["found", command.id] = command.digest
    if command.verdict is None:
        event = moves.event(
            tx, row, Kind.UNDECIDED, id=tx.memo.setdefault(("event", row.id), new_id()), worker=doubt.worker, claimed_at=None,
            message=command.reason, actor=command.caller.principal.key_id, request_id=command.caller.request_id,
            detail=command.evidence, grant_digest=grant_digest, settlement_digest=command.digest,
        )  # fmt: skip
        held.insert_events(tx, [event])
        put_off(tx, row, doubt, doubt.attempt)
        return
    verdict = Reconcile(
        command.id, command.caller, command.verdict, command.evidence, command.reference, command.reason,
        grant_digest=grant_digest, settlement_digest=command.digest,
    )  # fmt: skip
    control.decide(tx, row, verdict)


def put_off(tx: Tx, row: Any, doubt: Any, attempt: int, *, failures: int | None = None) -> None:
    """Nobody holds it any more: somebody may look again after a pause, or an operator must decide. `attempt`: how much of the
    budget is spent; `failures`: what the pause grows by, if not by that.
    """
    name = flows.Names(tx)[row.flow_id][0]
    destination = destinations.read(tx, [name]).get(name, Destination(name))
    if attempt >= budget_of(tx, destination):
        state, due_at = Doubt.OPERATOR, None
    else:
        pause = backoff(tx.host.settings.outbox_ask_backoff_seconds, attempt if failures is None else failures)
        state, due_at = Doubt.LATER, tx.now + pause
    store.update_state(tx, [{"b_message_id": row.id, "b_state": int(state), "b_due_at": due_at, "b_attempt": attempt}])


def _late(tx: Tx, command: Finding, digest: bytes, doubt: Any, *, newest: bool) -> Found | Refusal:
    said = next(iter(held.select_events_of_grants(tx, [command.id], [digest], findings=True)), None)
    if said is not None:
        if bytes(said.settlement_digest or b"") != command.digest:
            return settled_otherwise()
        ours = tx.repeated and tx.memo.get(("found", command.id)) == command.digest
        return _found(tx, command.id, replayed=not ours)
    fence = None if doubt is None else doubt.fence
    if doubt is None:
        refusal = lost("settled")
        stands = control.standing(tx, command.id)
        extra = dict(refusal.extra) | ({} if stands is None else {"verdict": stands.value})
        return Refusal(refusal.code, refusal.detail, extra=extra)
    return lost("expired" if newest else "superseded", fence)


def _found(tx: Tx, message_id: bytes, *, replayed: bool = False) -> Found:
    (row,) = held.lock_messages(tx, [message_id])
    doubt = next(iter(store.select_doubts(tx, [message_id])), None)
    needs = doubt is not None and doubt.state == Doubt.OPERATOR
    next_at = doubt.due_at if doubt is not None and doubt.state == Doubt.LATER else None
    return Found(message_id, State(row.state), needs, next_at, replayed)
