"""A payment provider as destinations are: it counts every call, and does with each what a test says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.e2e.process import eventually


class Provider:
    """`received` counts calls by their message key. `hold`: answers wait until it is released; `status` and `answer` are
    what they say. Questions about prepared and unknown messages are counted as `check` and `inquiry`.
    """

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.status = 200
        self.answer = b""
        self.released = threading.Event()
        self.released.set()
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._answer(self.headers["idempotency-key"] or "inquiry")

            def do_GET(self) -> None:
                self._answer("check")

            def _answer(self, key: str) -> None:
                with provider._lock:
                    provider.received[key] += 1
                    status = provider.mood(key)
                provider.released.wait(60)
                if status is None:
                    return
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(provider.answer)))
                    self.end_headers()
                    self.wfile.write(provider.answer)
                except OSError:
                    pass  # whoever called has been killed

            def log_message(self, *_: Any) -> None:
                """Nothing: it has a count."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def mood(self, key: str) -> int | None:
        """The status for this call; None breaks it off without an answer."""
        return self.status

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def hold(self) -> None:
        self.released.clear()

    def wait_for(self, calls: int) -> None:
        eventually(lambda: self.received.total() >= calls, what=f"{calls} calls")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


Make = Callable[[], Provider]
