"""TLS to MySQL: taken where the server offers it, with certificates read once, and as robust as without."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, make_url, text

from app.db import engines
from app.db.database import Database
from app.errors import Refusal
from tests.db.conftest import Open, add_once, select_all
from tests.servers.proxy import Proxy

CERTIFICATES = ssl.get_default_verify_paths().cafile


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    url = make_url(database_url)
    made = engines.make(engines.recognise(url), url, "write")
    yield made
    made.dispose()


@pytest.mark.engines("mysql")
def test_what_the_server_offers_is_taken(engine: Engine) -> None:
    with engine.connect() as connection:
        assert connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()[1]


@pytest.mark.engines("mariadb", "mysql")
def test_the_machines_certificates_are_read_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading takes longer than all the rest of a connection; see app/db/dialects/pymysql_connection.py."""
    engine.connect().close()  # the first of this process may read them
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: pytest.fail("the certificates are read again"))
    engine.connect().close()


@pytest.mark.engines("mariadb", "mysql")
@pytest.mark.skipif(CERTIFICATES is None, reason="this machine has no file of certificates to name")
def test_a_url_that_names_certificates_is_not_served_by_the_shared_context(engine: Engine, database_url: str) -> None:
    engine.connect().close()
    url = make_url(database_url).update_query_dict({"ssl_ca": str(CERTIFICATES)})
    # none of these has signed what a test server shows, if it shows anything: so nobody may be let through
    with pytest.raises(Exception, match=r"CERTIFICATE_VERIFY_FAILED|SSL|TLS"):
        engines.recognise(url)


@pytest.mark.engines("mysql")
def test_a_connection_under_tls_cut_at_many_places(rows_url: str, proxy: Proxy, open_database: Open) -> None:
    """A broken stream of TLS gives errors of its own; they mean what those of a plain one do."""
    through = make_url(rows_url).set(port=proxy.port).render_as_string(hide_password=False)
    database: Database = open_database(through)
    database.run(add_once, [b"warm"])
    assert database.read(lambda tx, _: tx.conn.execute(text("SHOW STATUS LIKE 'Ssl_cipher'")).one()[1], None)
    whole, refused = 0, set[str]()
    for number in range(1, 1200, 7):
        key = str(number).encode()
        proxy.cut_after(number, "replies", reset=bool(number % 2))
        try:
            database.run(add_once, [key], within_seconds=0)
            whole += 1
        except Refusal as refusal:
            refused.add(refusal.code.name)
        proxy.heal()
        assert database.run(add_once, [key])[0] in ("new", "there")
        if whole == 3:
            break
    assert whole == 3
    assert refused == {"database_unavailable"}
    assert set(database.read(select_all, None).values()) == {1}
