"""The embedded database's file: one process owns it, its folder is made, its journal is kept short."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.db import migrate
from app.db.database import Database
from app.db.tx import Tx
from app.errors import StartupProblem

ROOT = Path(__file__).resolve().parent.parent.parent

HOLD = """
import sys
from app.db.database import Database
database = Database(sys.argv[1])
database.open()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenure.db"


@pytest.fixture
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the database open."""
    command = [sys.executable, "-c", HOLD, f"sqlite:///{file}"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with process:
        yield process
        process.kill()


def open_once(file: Path) -> None:
    database = Database(f"sqlite:///{file}")
    database.open()
    database.shutdown()


def test_a_second_process_is_refused_and_told_who_has_the_file(file: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(StartupProblem) as raised:
        open_once(file)
    line = str(raised.value)
    assert f"process {holder.pid}" in line
    assert "HTTP" in line
    assert "\n" not in line
    with pytest.raises(StartupProblem, match=f"process {holder.pid}"):
        migrate.upgrade(f"sqlite:///{file}")


def test_a_process_that_was_killed_leaves_the_file_free(file: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    open_once(file)


def test_the_file_is_free_after_shutdown_and_no_sooner(file: Path) -> None:
    database = Database(f"sqlite:///{file}")
    database.open()
    database.close()
    command = [sys.executable, "-c", HOLD, f"sqlite:///{file}"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert "StartupProblem" in refused.stderr
    database.shutdown()
    allowed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert allowed.stdout == "open\n"


def test_the_process_itself_may_open_it_again_and_migrate_it(file: Path) -> None:
    first, second = Database(f"sqlite:///{file}"), Database(f"sqlite:///{file}")
    first.open()
    migrate.upgrade(f"sqlite:///{file}")
    second.open()
    assert migrate.state(second) == "current"
    second.shutdown()
    assert migrate.state(first) == "current"
    first.shutdown()


def test_the_folder_is_made(tmp_path: Path) -> None:
    file = tmp_path / "some" / "where" / "tenure.db"
    open_once(file)
    assert file.exists()


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupProblem, match=r"^the folder .* cannot be made: [\w ]+$"):
        open_once(tmp_path / "file" / "below" / "tenure.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StartupProblem, match="must name a file") as raised:
        Database(url).open()
    assert raised.value.exit_code == 2


def test_a_file_that_is_no_database_stops_the_start(file: Path) -> None:
    file.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StartupProblem, match=r"no connection to sqlite:.*SQLITE_NOTADB"):
        open_once(file)


def test_the_journal_is_folded_unless_a_reader_is_in_the_way(file: Path) -> None:
    database = Database(f"sqlite:///{file}")
    database.open()

    def fill(tx: Tx, commands: object) -> list[None]:
        tx.conn.execute(text("CREATE TABLE IF NOT EXISTS filler (body BLOB)"))
        tx.conn.execute(text("INSERT INTO filler VALUES (randomblob(200000))"))
        return [None]

    def fold_while_reading(tx: Tx, _: None) -> bool:
        tx.conn.execute(text("SELECT COUNT(*) FROM filler")).all()
        database.run(fill, [None])
        return database.fold_journal()

    database.run(fill, [None])
    assert database.journal_bytes() > 200_000
    assert database.read(fold_while_reading, None) is False
    assert database.journal_bytes() > 200_000
    assert database.fold_journal() is True
    assert database.journal_bytes() == 0
    database.shutdown()


def test_a_full_disk_is_a_clean_503_and_writes_go_on_after_it(file: Path) -> None:
    """The limit on pages stands in for the disk: SQLite answers both with SQLITE_FULL."""
    database = Database(f"sqlite:///{file}")
    database.open()

    def fill(tx: Tx, commands: object) -> list[None]:
        tx.conn.execute(text("CREATE TABLE IF NOT EXISTS filler (body BLOB)"))
        if limited:
            tx.conn.execute(text("PRAGMA max_page_count = 10"))
        tx.conn.execute(text("INSERT INTO filler VALUES (randomblob(200000))"))
        return [None]

    limited = True
    with pytest.raises(Exception, match="database_unavailable"):
        database.run(fill, [None])
    limited = False
    database.run(fill, [None])
    assert database.read(lambda tx, _: tx.conn.execute(text("SELECT COUNT(*) FROM filler")).scalar_one(), None) == 1
    database.shutdown()
