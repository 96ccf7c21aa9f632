"""An encryption key of the installation's own: on an embedded database nobody has to set one before the first secret."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import SecretStr

from app.db.engines import file_of, parse
from app.errors import StartupProblem
from app.outgoing.vault import new_key, parse_key
from app.settings import Settings


def with_own_key(settings: Settings) -> Settings:
    """With the key of the file `<database>.key`, made at the first start, where none is set and the database is a file.

    Only its owner may read it. It protects copies of the database, not the host that has both. Servers have replicas on many
    hosts: there the setting is needed. Raises StartupProblem for a file that holds no key.
    """
    database = file_of(parse(settings.database_url.get_secret_value()))
    if settings.encryption_keys or database is None:
        return settings
    path = Path(f"{database}.key")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        key = path.read_text(encoding="ascii").strip()
        parse_key(key)
    except OSError:  # what the database itself cannot do there is told when it is opened
        return settings
    except ValueError:
        raise StartupProblem(
            f"{path} holds no encryption key: put it back, or delete it if no destination has a secret", exit_code=2
        ) from None
    return settings.model_copy(update={"encryption_keys": (SecretStr(key),)})


def _make(path: Path) -> None:
    """Whole or not at all; of two that make it, the first."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name) as made:  # readable by its owner alone
        made.write(new_key())
        made.flush()
        os.fsync(made.fileno())
        try:
            os.link(made.name, path)
        except FileExistsError:
            return
