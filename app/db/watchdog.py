"""The watchdog: ends connections whose server has gone silent, for drivers that would wait for it without end.

libpq has no read timeout: a server that is frozen, or whose reply was lost while its host still acknowledges packets, would
hold a thread for ever. The server's own statement limit is far below this one, so a server that lives answers first.
"""

from __future__ import annotations

import threading

import structlog

from app.db.connections import Connections
from app.db.dialects.base import Dialect

log = structlog.get_logger("tenure.db")

SILENT_SECONDS = 20.0
LOOK_SECONDS = 1.0


class Watchdog:
    """A thread that looks at all busy connections."""

    def __init__(self, connections: Connections, dialect: Dialect, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._connections = connections
        self._dialect = dialect
        self._silent_seconds = silent_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tenure-db-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(min(LOOK_SECONDS, self._silent_seconds / 4)):
            for held in self._connections.busy_longer_than(self._silent_seconds):
                log.warning("connection_cut", silent_seconds=self._silent_seconds)
                self._dialect.cut(held.connection)
