"""SQL of API keys: one function for each statement. There are few keys, so nothing but the primary key is indexed for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, or_, select, update

from app.access import Role
from app.db.tables import api_keys
from app.db.tx import Tx
from app.primitives.keys.model import ApiKey, Create


def insert_key(tx: Tx, new: Create) -> None:
    """Add the key, unless a try before this one did."""
    tx.conn.execute(
        tx.dialect.insert_missing(
            api_keys,
            [
                {
                    "id": new.id,
                    "digest": new.digest,
                    "name": new.name,
                    "roles": ",".join(new.roles),
                    "patterns": json.dumps(new.patterns),
                    "created_at": tx.now,
                    "expires_at": new.expires_at,
                    "revoked_at": None,
                    "last_used_at": None,
                }
            ],
        )
    )


def has_any_key(tx: Tx) -> bool:
    """Whether a key was ever made."""
    return tx.conn.execute(select(api_keys.c.id).limit(1)).first() is not None


def select_key(tx: Tx, key_id: str) -> ApiKey | None:
    """One key; by primary key."""
    row = tx.conn.execute(select(api_keys).where(api_keys.c.id == key_id)).first()
    return None if row is None else _key(row)


def select_all(tx: Tx) -> list[ApiKey]:
    """Every key, for the directory of a process."""
    return [_key(row) for row in tx.conn.execute(select(api_keys))]


def select_page(tx: Tx, limit: int, after: tuple[int, str] | None) -> list[ApiKey]:
    """At most `limit` + 1 keys, newest first, below (created_at, id)."""
    query = select(api_keys).order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc()).limit(limit + 1)
    if after is not None:
        created_at, key_id = after
        older = api_keys.c.created_at < created_at
        query = query.where(or_(older, and_(api_keys.c.created_at == created_at, api_keys.c.id < key_id)))
    return [_key(row) for row in tx.conn.execute(query)]


def revoke_key(tx: Tx, key_id: str) -> int:
    """Revoke a key that is not revoked; by primary key. Gives the number of rows."""
    change = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)).values(revoked_at=tx.now)
    return tx.conn.execute(change).rowcount


def touch_keys(tx: Tx, used: Mapping[str, int]) -> None:
    """Note when keys were last used; each by primary key, in the order of ids. An older moment never replaces a newer one."""
    for key_id in sorted(used):
        newer = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < used[key_id])
        tx.conn.execute(update(api_keys).where(api_keys.c.id == key_id, newer).values(last_used_at=used[key_id]))


def _key(row: Row[Any]) -> ApiKey:
    names: Sequence[str] = row.roles.split(",")
    return ApiKey(
        id=row.id,
        digest=bytes(row.digest),
        name=row.name,
        roles=tuple(Role(name) for name in names),
        patterns=tuple(json.loads(row.patterns)),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
