"""Does this very server skip locked rows? Found out with two connections and two rows, never from a version.

Some servers that speak a familiar protocol parse SKIP LOCKED and ignore it, and some give both rows to both.
"""

from __future__ import annotations

import random
from enum import Enum

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from app.clock import MICROS
from app.db import store
from app.db.dialects.base import Dialect

log = structlog.get_logger("tenure.db")

LEFTOVER_MICROS = 3600 * MICROS


class Verdict(Enum):
    """What `/health` and the metric say."""

    YES = "yes"
    NO = "no"
    UNPROVEN = "unproven"  # the probe's table is not there yet
    NOT_NEEDED = "not needed"  # one writer


def skip_locked(dialect: Dialect, engine: Engine) -> Verdict:
    """Probe the server. A probe that fails means no, and is logged; it never raises."""
    if dialect.single_writer:
        return Verdict.NOT_NEEDED
    try:
        with engine.connect() as holder, engine.connect() as other:
            if not store.has_probes(holder):
                return Verdict.UNPROVEN
            holder.rollback()
            return Verdict.YES if _skips(dialect, holder, other) else Verdict.NO
    except SQLAlchemyError as error:
        log.warning("skip_locked_probe_failed", error=type(getattr(error, "orig", None) or error).__name__)
        return Verdict.NO


def _skips(dialect: Dialect, holder: Connection, other: Connection) -> bool:
    run = random.getrandbits(62)
    with holder.begin():
        store.insert_probe(holder, dialect, run)
    try:
        with holder.begin():
            store.lock_probe(holder, run)
            with other.begin():
                seen = store.lock_free_probes(other, run)
        if seen != [2]:
            log.warning("skip_locked_not_honoured", rows=len(seen))
        return seen == [2]
    finally:
        with other.begin():
            store.delete_probe(other, run)
            store.delete_old_probes(other, dialect, LEFTOVER_MICROS)
