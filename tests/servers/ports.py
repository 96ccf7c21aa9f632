"""Free ports for servers that must come back on the same one."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 15_000, 32_000
"""Below the range that the system gives to outgoing connections, so that none of them takes a killed server's port."""


def free_port() -> int:
    """Return a port on 127.0.0.1 that nobody listens on at this moment."""
    chooser = random.SystemRandom()
    for _ in range(200):
        port = chooser.randrange(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port found")
