"""Fixtures that every test may use: a database on every engine, empty or migrated, and ways to break it.

A test that takes `engine_name`, or any fixture below that needs it, runs once for each engine found. Set
TENURE_TEST_ENGINES=sqlite,mysql to choose engines; each one that it names must then be there.

    server              the engine's running server, shared by the session: do not disturb it
    faulty_server       the same, and it may be killed, paused, restarted: it is healed after the test (not on sqlite)
    proxy               a TCP proxy in front of the server, see tests/servers/proxy.py (not on sqlite)
    new_database        call it for one more empty database
    database_url        an empty database of this test's own
    migrated_url        a database as the migrations leave it; shared by the session, cleaned before the test
    fresh_migrated_url  the same in a database that nobody has used: for plans, statistics, DDL
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

# Not UTC, not the servers' zone, and not a whole number of hours from either. Set before anything reads a clock.
os.environ["TZ"] = "America/St_Johns"
time.tzset()

# Settings of the developer's own service must not reach the tests.
_OURS = ("TENURE_TEST_", "TENURE_MYSQL_ROOT")
for _name in [name for name in os.environ if name.startswith("TENURE_") and not name.startswith(_OURS)]:
    del os.environ[_name]

import hypothesis
import pytest

from tests.servers import Engine, Selection, Server, select_engines
from tests.servers.migrated import MigratedDatabases
from tests.servers.proxy import Proxy
from tests.servers.sqlite import SQLite

SELECTION = pytest.StashKey[Selection]()

# A busy machine is slow, and that is no failure of the code; the reproduction blob is worth its line.
hypothesis.settings.register_profile("tenure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tenure")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SELECTION] = select_engines(os.environ)


def pytest_sessionstart(session: pytest.Session) -> None:
    if refusal := session.config.stash[SELECTION].refusal:
        pytest.exit(refusal, returncode=3)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[SELECTION].lines()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    selection = config.stash[SELECTION]
    terminalreporter.section("engines", yellow=bool(selection.missing))
    for line in selection.lines():
        terminalreporter.write_line(line, yellow="NOT TESTED" in line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last thing that pytest calls, whatever happened before: no server outlives the session."""
    selection = config.stash.get(SELECTION, None)
    for engine in (selection.found if selection else {}).values():
        engine.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each engine found; `@pytest.mark.engines("mysql", …)` narrows that."""
    if "engine_name" not in metafunc.fixturenames:
        return
    names = list(metafunc.config.stash[SELECTION].found)
    for mark in metafunc.definition.iter_markers("engines"):
        names = [name for name in names if name in mark.args]
    if {"faulty_server", "proxy"} & set(metafunc.fixturenames):
        names = [name for name in names if name != SQLite.name]
    metafunc.parametrize("engine_name", names, ids=names, scope="session")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests are marked `@pytest.mark.anyio` and run on the loop that the service runs on."""
    return "asyncio"


@pytest.fixture
def server(engine_name: str, request: pytest.FixtureRequest) -> Engine:
    engine = request.config.stash[SELECTION].found[engine_name]
    engine.start()
    return engine


@pytest.fixture
def faulty_server(server: Engine) -> Iterator[Server]:
    assert isinstance(server, Server)
    yield server
    server.heal()


@pytest.fixture
def proxy(server: Engine) -> Iterator[Proxy]:
    assert isinstance(server, Server)
    with Proxy(server.port) as running:
        yield running


@pytest.fixture
def new_database(server: Engine) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(server.create_database())
        return made[-1]

    yield make
    server.heal()
    for url in made:
        server.drop_database(url)


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture(scope="session")
def migrated_databases() -> Iterator[MigratedDatabases]:
    databases = MigratedDatabases()
    yield databases
    databases.close()


@pytest.fixture
def migrated_url(server: Engine, migrated_databases: MigratedDatabases) -> Iterator[str]:
    url = migrated_databases.clean(server)
    yield url
    if isinstance(server, SQLite):  # each test has a copy there
        server.drop_database(url)


@pytest.fixture
def fresh_migrated_url(server: Engine, migrated_databases: MigratedDatabases) -> Iterator[str]:
    url = migrated_databases.fresh(server)
    yield url
    server.heal()
    server.drop_database(url)
