"""Private, throw-away database servers for the tests, one module for each engine, and a TCP proxy that breaks things.

No test and no SQL of the service belongs here. Every server lives in its own temporary folder, on a port that was free
when it started, in a time zone that is neither UTC nor that of the test process, with fsync on; it ends with the test
session, also when that is killed. Nothing that runs on the machine already is touched.
"""

from __future__ import annotations

from tests.servers.base import Engine, Server, ServerDied
from tests.servers.finding import ENGINE_NAMES, Selection, select_engines

__all__ = ["ENGINE_NAMES", "Engine", "Selection", "Server", "ServerDied", "select_engines"]
