"""SQL of the service itself: one function for each statement. The API keys' statements stand with their verbs."""

from __future__ import annotations

from sqlalchemy import Connection, delete, inspect, select

from app.db.dialects.base import Dialect
from app.db.tables import heartbeats, installation, probes
from app.db.tx import Tx

# -- installation ------------------------------------------------------------------------------------------------------


def insert_installation(tx: Tx, token_key: bytes) -> None:
    """Make the one row unless it is there. Of several processes that try, the first wins."""
    row = {"id": 1, "token_key": token_key, "created_at": tx.now}
    tx.conn.execute(tx.dialect.insert_missing(installation, [row]))


def select_token_key(tx: Tx) -> bytes | None:
    """The key of this installation; by primary key."""
    found = tx.conn.execute(select(installation.c.token_key).where(installation.c.id == 1)).scalar_one_or_none()
    return None if found is None else bytes(found)


# -- heartbeats --------------------------------------------------------------------------------------------------------


def upsert_heartbeat(tx: Tx, name: str) -> None:
    """Write that the replica `name` could write now; by primary key."""
    row = {"name": name, "beat_at": tx.now}
    tx.conn.execute(tx.dialect.upsert(heartbeats, [row], ["beat_at"]))


def select_heartbeats(tx: Tx) -> list[tuple[str, int]]:
    """(name, last beat) of every replica, by name. A handful of rows."""
    rows = tx.conn.execute(select(heartbeats.c.name, heartbeats.c.beat_at).order_by(heartbeats.c.name))
    return [(name, beat_at) for name, beat_at in rows]


def select_silent_heartbeats(tx: Tx, before: int, limit: int) -> list[str]:
    """Names of replicas that have not beaten since `before`."""
    query = select(heartbeats.c.name).where(heartbeats.c.beat_at < before).order_by(heartbeats.c.name).limit(limit)
    return list(tx.conn.execute(query).scalars())


def delete_heartbeat(tx: Tx, name: str, before: int) -> int:
    """Forget a replica, unless it has beaten since; by primary key. Gives the number of rows."""
    gone = delete(heartbeats).where(heartbeats.c.name == name, heartbeats.c.beat_at < before)
    return tx.conn.execute(gone).rowcount


# -- probes ------------------------------------------------------------------------------------------------------------


def has_probes(connection: Connection) -> bool:
    """Whether the schema is there at all."""
    return inspect(connection).has_table(probes.name)


def insert_probe(connection: Connection, dialect: Dialect, run: int) -> None:
    """The two rows of one probe."""
    for number in (1, 2):
        connection.execute(probes.insert().values(run=run, number=number, created_at=dialect.now()))


def lock_probe(connection: Connection, run: int) -> None:
    """Lock the first row; by primary key."""
    connection.execute(select(probes.c.number).where(probes.c.run == run, probes.c.number == 1).with_for_update())


def lock_free_probes(connection: Connection, run: int) -> list[int]:
    """Lock what nobody holds of the two, in order; by the primary key's first column."""
    query = select(probes.c.number).where(probes.c.run == run).order_by(probes.c.number)
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())


def delete_probe(connection: Connection, run: int) -> None:
    """Both rows; by the primary key's first column."""
    connection.execute(delete(probes).where(probes.c.run == run))


def delete_old_probes(connection: Connection, dialect: Dialect, age_micros: int) -> None:
    """What a probe left whose process died. The table is empty but for the probes of this moment."""
    connection.execute(delete(probes).where(probes.c.created_at < dialect.now() - age_micros))
