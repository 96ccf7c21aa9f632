"""Work: a holder's whole round, its results and its next claim, in one transaction and so with one commit."""

from __future__ import annotations

from collections.abc import Sequence

from app.db.tx import Tx
from app.primitives.outbox.model.commands import Round, Worked
from app.primitives.outbox.ops.claim import claim
from app.primitives.outbox.ops.settle import settle


def work(tx: Tx, commands: Sequence[Round]) -> list[Worked]:
    """Settle what each round brings, then claim for each what is there now; nobody waits here.

    Guarantee, Race: those of `settle` and of `claim`.
    """
    settled = settle(tx, [command.settle for command in commands])
    claimed = claim(tx, [command.claim for command in commands])
    return [Worked(tuple(results), grants) for results, grants in zip(settled, claimed, strict=True)]
