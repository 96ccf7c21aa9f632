"""Drives the verbs of idempotency without HTTP, each in one line."""

from __future__ import annotations

from typing import Any

from app.access import Caller
from app.clock import micros
from app.ids import new_id
from app.primitives.idempotency.here import Here
from app.primitives.idempotency.model import (
    Beat,
    Check,
    Checked,
    OnOwnerLost,
    Outcome,
    Reconcile,
    Renewed,
    Settle,
    Settled,
    State,
    Verdict,
    fingerprint_of,
    key_digest,
    said,
)
from app.primitives.idempotency.ops import sweep
from app.primitives.idempotency.ops.check import check, peek
from app.primitives.idempotency.ops.reconcile import reconcile
from app.primitives.idempotency.ops.settle import give_back, renew, settle
from app.settings import Settings
from tests.primitives.verbs import CALLER, Host, Verbs, good, reason

__all__ = ["Idempotency", "good", "host", "reason"]

SCOPE = "POST /orders"


def host(settings: Settings | None = None) -> Host:
    return Host("idempotency", Here, settings)


class Idempotency(Verbs):
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    def wanted(
        self,
        key: str = "k",
        request: str = "r",
        *,
        lease: float = 60,
        retention: float = 3600,
        lost: OnOwnerLost = OnOwnerLost.RECONCILE,
        caller: Caller = CALLER,
        claim_id: str | None = None,
    ) -> Check:
        digest = key_digest(SCOPE, key)
        return Check(digest, SCOPE, fingerprint_of(request), micros(lease), micros(retention), lost, caller, claim_id)

    def check_all(self, *commands: Check) -> list[Any]:
        return self.run(check, *commands)

    def check(self, key: str = "k", request: str = "r", **options: Any) -> Checked:
        return good(self.check_all(self.wanted(key, request, **options))[0])  # type: ignore[no-any-return]

    def take(self, key: str = "k", request: str = "r", **options: Any) -> Checked:
        """A key that must be to be had."""
        checked = self.check(key, request, **options)
        assert checked.outcome is Outcome.ACQUIRED, checked
        return checked

    def settlement(
        self,
        owned: Checked,
        state: State = State.COMPLETED,
        result: bytes | None = b'{"a":1}',
        category: str | None = None,
        message: str | None = None,
        key: str = "k",
    ) -> Settle:
        if state is not State.COMPLETED:
            result, category = None, category or "because"
        digest = said(state, result, category, message)
        return Settle(SCOPE, key, key_digest(SCOPE, key), owned.token or "", state, digest, result, category, message)

    def settle_all(self, *commands: Settle) -> list[Any]:
        return self.run(settle, *commands)

    def settle(self, owned: Checked, state: State = State.COMPLETED, **said_: Any) -> Settled:
        return good(self.settle_all(self.settlement(owned, state, **said_))[0])  # type: ignore[no-any-return]

    def beat_all(self, *beats: Beat) -> list[Any]:
        return self.run(renew, *beats)

    def beat(self, owned: Checked, lease: float | None = 60, key: str = "k") -> Renewed:
        beat = Beat(key_digest(SCOPE, key), owned.token or "", None if lease is None else micros(lease))
        return good(self.beat_all(beat)[0])  # type: ignore[no-any-return]

    def verdict(self, verdict: Verdict = Verdict.COMPLETED, result: bytes | None = b'"found"', key: str = "k") -> Any:
        """What the verdict gives; a refusal is a value."""
        found = result if verdict is Verdict.COMPLETED else None
        command = Reconcile(SCOPE, key_digest(SCOPE, key), verdict, found, b'{"seen":1}', CALLER, new_id())
        return self.run(reconcile, command)[0]

    def give_back(self, owned: Checked) -> None:
        self.run(give_back, owned)

    def peek(self, *keys: str) -> list[str]:
        """Those of these that nobody is at work on."""
        of = {key_digest(SCOPE, key): key for key in keys}
        return [of[digest] for digest in self.database.read(peek, list(of))]

    def abandon(self, most: int = sweep.BATCH) -> int:
        return int(self.run(sweep.abandon, sweep.Batch(most))[0])

    def purge(self, most: int = sweep.BATCH) -> int:
        return int(self.run(sweep.purge, sweep.Batch(most))[0])
