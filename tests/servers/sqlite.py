"""SQLite for the tests: a file for each database in one temporary folder. There is no process to break."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.servers.base import MEMORY, Engine


class SQLite(Engine):
    name = "sqlite"

    def __init__(self) -> None:
        self.folder: Path | None = None

    def start(self) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="tenure-sqlite-", dir=MEMORY))

    def close(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def create_database(self) -> str:
        assert self.folder is not None, "start() comes first"
        place = self.folder / self.new_name()
        place.mkdir()
        return f"sqlite:///{place / 'tenure.db'}"

    def drop_database(self, url: str) -> None:
        shutil.rmtree(file_of(url).parent, ignore_errors=True)

    def disconnect_clients(self, url: str) -> None:
        """Nothing to do: a connection of this process cannot be ended from outside it."""

    def copy_database(self, url: str) -> str:
        """Return the URL of a copy. Nobody may be writing to the original."""
        copy = self.create_database()
        shutil.copyfile(file_of(url), file_of(copy))
        return copy


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
