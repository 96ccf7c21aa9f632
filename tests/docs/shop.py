"""A producer as docs/outbox.md describes it: an account with the rights of that page, a table of its own, its programs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import URL, NullPool, create_engine, make_url

from tests.docs.blocks import Block, blocks_of

PAGE = "docs/outbox.md"
BLOCKS = blocks_of(PAGE)
SERVER_NAMES = ("mariadb", "mysql", "postgresql")
NODE = Path(__file__).parent / "node"
ACCOUNT = "shop"
PASSWORD = "secret"


def sql(section: str, engine: str) -> list[str]:
    """The statements of a section that hold on this engine, one after the other."""
    held = [one for one in BLOCKS if (one.section, one.language) == (section, "sql") and _holds(one, engine)]
    return [statement.strip() for one in held for statement in one.text.split(";") if statement.strip()]


def _holds(block: Block, engine: str) -> bool:
    return not block.words or engine in block.words


def run_sql(url: str | URL, statements: list[str]) -> list[Any]:
    """As a client without a program does: each statement by itself, in autocommit. Gives the rows of the last."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect().execution_options(no_parameters=True) as connection:
        rows: list[Any] = []
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = list(result) if result.returns_rows else []
    return rows


@contextmanager
def shop(url: str, engine: str) -> Iterator[URL]:
    """The account of the producer, with the rights of the page and its own table; gives its URL."""
    database = make_url(url).database
    run_sql(url, ["CREATE TABLE orders (id BIGINT PRIMARY KEY, total DECIMAL(10, 2) NOT NULL)"])
    grants = [one.replace("tenure.tenure_outbox", f"{database}.tenure_outbox") for one in sql("Rights", engine)]
    own = {
        "postgresql": ["GRANT ALL ON orders TO shop"],
        "mariadb": [f"GRANT ALL ON {database}.orders TO 'shop'@'%'"],
        "mysql": [f"GRANT ALL ON {database}.orders TO 'shop'@'%'"],
    }
    gone = {
        "postgresql": ["DROP OWNED BY shop", "DROP ROLE shop"],
        "mariadb": ["DROP USER 'shop'@'%'"],
        "mysql": ["DROP USER 'shop'@'%'"],
    }
    run_sql(url, grants + own.get(engine, []))
    try:
        yield make_url(url).set(username=ACCOUNT, password=PASSWORD) if engine in own else make_url(url)
    finally:
        run_sql(url, [*gone.get(engine, []), "DROP TABLE orders"])


def environment(url: URL) -> dict[str, str]:
    """What the examples read, for each of their drivers."""
    backend = url.get_backend_name()
    given = {"DB_USER": url.username or "", "DB_PASSWORD": url.password or ""}
    if backend == "sqlite":
        given |= {"DB_FILE": str(url.database), "DB_DSN": f"sqlite:{url.database}"}
    else:
        kind = {"mysql": "mysql", "postgresql": "pgsql"}[backend]
        options = ";charset=utf8mb4" if backend == "mysql" else ""
        given |= {"DB_HOST": str(url.host), "DB_PORT": str(url.port), "DB_NAME": str(url.database)}
        given["DB_DSN"] = f"{kind}:host={url.host};port={url.port};dbname={url.database}{options}"
    return given


def run_program(
    block: Block, folder: Path, variables: Mapping[str, str], tail: str = "", given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run an example as a program of its own, with `tail` behind it and `given` on its standard input."""
    names = {"php": "example.php", "js": "example.mjs", "python": "example.py"}
    file = folder / names[block.language]
    file.write_text(block.text + tail)
    program = {"php": ["php"], "js": ["node"], "python": [sys.executable]}[block.language]
    if block.language == "js":
        modules = folder / "node_modules"
        if not modules.exists():
            modules.symlink_to(node_modules())
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTHONPATH"))}
    return subprocess.run(
        [*program, str(file)], cwd=folder, env={**clean, **variables}, input=given, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip


@cache
def node_modules() -> Path:
    """The packages of `node/package-lock.json`, installed once for each of its versions, beside the user's other caches."""
    lock = (NODE / "package-lock.json").read_bytes()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = home / "tenure-tests" / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as name:
            folder = Path(name) / "made"
            shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"))
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            try:
                folder.rename(kept)
            except OSError:
                assert kept.exists()  # another process was first
    return kept / "node_modules"
