"""A connection of PyMySQL that shares one TLS context with the others of this process.

Where a URL names no certificates, PyMySQL takes TLS if the server offers it and verifies nobody. It prepares for that by
reading every certificate of the machine, for each connection anew: 25 ms under the interpreter's lock and a hundred times
what the rest of a connection costs, at the very moment when all threads connect again to a server that has come back.
"""

from __future__ import annotations

from ssl import SSLContext
from typing import Any, ClassVar

from pymysql.connections import Connection


class SharedContext(Connection):
    """Opens as PyMySQL's own does. A URL that says more about TLS gets a context of its own, as always."""

    _shared: ClassVar[SSLContext | None] = None

    def _create_ssl_ctx(self, sslp: Any) -> SSLContext:
        """PyMySQL's hook, which it gives `{}` where nothing was said. Should it ever be renamed, we are slow, not wrong.

        Race: two threads may make the first context twice; either serves.
        """
        if not sslp and SharedContext._shared is not None:
            return SharedContext._shared
        made: SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in the stubs
        if not sslp:
            SharedContext._shared = made
        return made
