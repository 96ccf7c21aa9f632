"""Which engines this machine has, which the caller insists on, and what to say about the rest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.base import Engine
from tests.servers.mariadb import MariaDB
from tests.servers.mysql import MySQL
from tests.servers.postgresql import PostgreSQL
from tests.servers.sqlite import SQLite

ENGINE_NAMES = ("sqlite", "mariadb", "mysql", "postgresql")

REQUIRED_VARIABLE = "TENURE_TEST_ENGINES"
MYSQL_ROOT_VARIABLE = "TENURE_MYSQL_ROOT"


@dataclass(frozen=True)
class Selection:
    """What a test session runs on."""

    found: Mapping[str, Engine]  # name to engine, not started; in the order of ENGINE_NAMES
    missing: Mapping[str, str]  # name to why, for engines that were looked for and not found
    left_out: tuple[str, ...]  # names that TENURE_TEST_ENGINES does not list
    refusal: str | None  # why the session must not run at all

    def lines(self) -> list[str]:
        """What the header and the summary of a run say about engines."""
        lines = [f"engines under test: {', '.join(self.found) or 'NONE'}"]
        lines += [f"ENGINE NOT TESTED: {name} ({why})" for name, why in self.missing.items()]
        if self.left_out:
            lines.append(f"ENGINES NOT TESTED: {', '.join(self.left_out)} (not in {REQUIRED_VARIABLE})")
        return lines


def select_engines(environment: Mapping[str, str]) -> Selection:
    """Look for what TENURE_TEST_ENGINES names, all of it required; without it for every engine, none required."""
    listed = [name.strip() for name in environment.get(REQUIRED_VARIABLE, "").split(",") if name.strip()]
    unknown = [name for name in listed if name not in ENGINE_NAMES]
    if unknown:
        known = f"{REQUIRED_VARIABLE} names {', '.join(unknown)}; known are {', '.join(ENGINE_NAMES)}"
        return Selection({}, {}, (), known)
    wanted = [name for name in ENGINE_NAMES if not listed or name in listed]
    found: dict[str, Engine] = {}
    missing: dict[str, str] = {}
    for name in wanted:
        result = _FINDERS[name](environment)
        if isinstance(result, Engine):
            found[name] = result
        else:
            missing[name] = result
    refusal: str | None = None
    if listed and missing:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        refusal = f"{REQUIRED_VARIABLE} requires engines that are not here: {reasons}"
    return Selection(found, missing, tuple(name for name in ENGINE_NAMES if name not in wanted), refusal)


def find_sqlite(environment: Mapping[str, str]) -> Engine | str:
    return SQLite()


def find_mariadb(environment: Mapping[str, str]) -> Engine | str:
    server = _program("mariadbd", environment)
    installer = _program("mariadb-install-db", environment)
    if server is None or installer is None:
        return "no mariadbd with mariadb-install-db on this machine; Debian's package is mariadb-server"
    return MariaDB(server, installer)


def find_mysql(environment: Mapping[str, str]) -> Engine | str:
    if root := environment.get(MYSQL_ROOT_VARIABLE):
        return _mysql_in_root(Path(root))
    server = _program("mysqld", environment)
    if server is None:
        return f"no mysqld on this machine and {MYSQL_ROOT_VARIABLE} is not set"
    version = subprocess.run([server, "--no-defaults", "--version"], check=False, capture_output=True, text=True).stdout
    if "MariaDB" in version or not re.search(r"Ver \d", version):
        return f"the mysqld on this machine is MariaDB's; set {MYSQL_ROOT_VARIABLE} to a root folder with the real one"
    return MySQL(str(server))


def _mysql_in_root(root: Path) -> Engine | str:
    if not (root / "usr/sbin/mysqld").exists():
        return f"{MYSQL_ROOT_VARIABLE} names a folder without usr/sbin/mysqld"
    if os.geteuid() != 0:
        return f"{MYSQL_ROOT_VARIABLE} needs root, for chroot"
    return MySQL("/usr/sbin/mysqld", root)


def find_postgresql(environment: Mapping[str, str]) -> Engine | str:
    missing = "no PostgreSQL server on this machine; Debian's package is postgresql"
    # Debian keeps each version's programs in a folder of its own, outside PATH; the newest is taken.
    packaged = sorted(
        (place for place in Path("/usr/lib/postgresql").glob("*/bin") if place.parent.name.isdigit()),
        key=lambda place: int(place.parent.name),
        reverse=True,
    )
    on_path = _program("postgres", environment)
    folders = packaged + ([on_path.resolve().parent] if on_path is not None else [])
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return PostgreSQL(folder)
    return missing


def _program(name: str, environment: Mapping[str, str]) -> Path | None:
    """Look in PATH and in the folders for administrators' programs, which an ordinary user's PATH leaves out."""
    path = os.pathsep.join([environment.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


_FINDERS: Mapping[str, Callable[[Mapping[str, str]], Engine | str]] = {
    "sqlite": find_sqlite,
    "mariadb": find_mariadb,
    "mysql": find_mysql,
    "postgresql": find_postgresql,
}
