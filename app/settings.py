"""Every setting of Tenure, read once at start from `TENURE_*` and, for secrets, from files named by `TENURE_*_FILE`.

Nothing else in the code reads the environment. The table in docs/settings.md is made from the descriptions here.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.errors import StartupProblem

KIB = 1024
_FOR_TESTS = ("TENURE_TEST_", "TENURE_MYSQL_")
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,23}")


def _words(value: object) -> object:
    """A list that is written as JSON, or as words between commas or white space (a file: one a line)."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return tuple(value.replace(",", " ").split())
    try:
        found = json.loads(value)
    except ValueError:
        raise ValueError("must be a JSON list of strings, or words between commas") from None
    if not all(isinstance(item, str) for item in found):
        raise ValueError("must be a list of strings")
    return tuple(found)


_Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
_Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_words)]


class Settings(BaseSettings):
    """Validated settings. A wrong one stops the start with one clear line (`load`)."""

    model_config = SettingsConfigDict(env_prefix="TENURE_", extra="ignore", frozen=True, hide_input_in_errors=True)

    database_url: SecretStr = Field(
        SecretStr("sqlite:///var/tenure.db"),
        description="SQLAlchemy URL: `sqlite:///path`, `mysql+pymysql://…` (MySQL and MariaDB), `postgresql+psycopg://…`.",
    )
    table_prefix: str = Field(
        "tenure_", description="Begins the name of every table and index (a-z, 0-9, _; at most 24)."
    )
    host: str = Field(
        "127.0.0.1", description="Address to listen on. Without any API key only a loopback address is taken."
    )
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    public_url: str = Field(
        "", description="Base URL that clients use, for the OpenAPI `servers` entry; empty means relative."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="`auto`: console on a terminal, else JSON."
    )
    metrics_access: Literal["open", "key"] = Field(
        "open", description="`key`: /metrics needs a key with a reading role."
    )

    max_payload_bytes: int = Field(256 * KIB, ge=KIB, le=1024 * KIB, description="Largest payload, result or evidence.")
    max_body_bytes: int = Field(4096 * KIB, ge=64 * KIB, le=8192 * KIB, description="Largest request body.")
    request_timeout_seconds: float = Field(
        15.0, gt=0, le=120, description="A request that waits longer for the database gets 503."
    )
    lane_capacity: int = Field(10_000, ge=10, description="Items that may wait in one lane before 503 `overloaded`.")
    lane_threads: int = Field(1, ge=1, le=8, description="Database threads for each busy lane (SQLite has one writer).")
    max_waiting_claims: int = Field(5_000, ge=1, description="Claims that may wait in this process at once.")
    poll_seconds: float = Field(
        0.2,
        ge=0.01,
        le=5,
        description="How often waiting claims look for work that another replica enqueued (jittered).",
    )

    sqlite_synchronous: Literal["FULL", "NORMAL", "EXTRA"] = Field(
        "FULL", description="SQLite only. NORMAL is faster, and may lose the last commits when power fails."
    )

    jobs_max_attempts: int = Field(5, ge=1, le=1000, description="Attempts of a job that names none.")
    jobs_timeout_seconds: float = Field(
        3600.0, gt=0, le=604_800, description="Ceiling of one attempt of a job that names none."
    )
    jobs_lease_seconds: float = Field(
        60.0, ge=5, le=3600, description="Lease of a claim that names none, for jobs whose contract names none."
    )
    contract_policy: Literal["allow", "warn", "refuse"] = Field(
        "allow", description="What becomes of new jobs whose type has no valid contract; a queue may say otherwise."
    )
    jobs_max_lease_losses: int = Field(
        3, ge=1, le=1000, description="Lease losses after which a job is dead (`abandoned`)."
    )
    jobs_max_releases: int = Field(1000, ge=1, description="Releases after which a job is dead (`released_too_often`).")
    jobs_backoff_seconds: tuple[float, ...] = Field(
        (10.0, 60.0, 300.0, 900.0),
        description="Pauses between attempts (JSON list); the last repeats; jitter is added.",
    )
    jobs_on_lease_loss: Literal["retry", "unknown"] = Field(
        "retry", description="What becomes of an abandoned attempt."
    )
    jobs_retention_seconds: float = Field(604_800.0, ge=0, description="How long an ended job is kept.")
    outbox_max_attempts: int = Field(
        10, ge=1, le=1000, description="Attempts of a message where neither it nor its destination names any."
    )
    outbox_check_budget: int = Field(
        10,
        ge=1,
        le=1000,
        description="How often the producer of a prepared message is asked in vain before an operator must decide.",
    )
    outbox_reconcile_budget: int = Field(
        10,
        ge=1,
        le=1000,
        description="How often it is tried to find out what became of an unknown message before an operator must decide, where "
        "its destination says nothing.",
    )
    outbox_ask_backoff_seconds: tuple[float, ...] = Field(
        (10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
        description="Pauses after an answer that decided nothing, and after a call that reached nobody (JSON); the last repeats.",
    )
    outbox_ask_timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=300,
        description="Ceiling of one question to a producer or a reconciler, to the last byte of the answer.",
    )
    outbox_ask_give_up_seconds: float = Field(
        86_400.0, ge=0, description="For how long one that cannot be reached is asked; then an operator must decide."
    )
    outbox_retention_seconds: float = Field(
        2_592_000.0,
        ge=0,
        description="How long an ended message and its key are kept, where its destination says nothing.",
    )
    locks_retention_seconds: float = Field(
        86_400.0, ge=0, description="How long a lock that nobody holds is listed; its fence is kept for ever."
    )
    silent_after_seconds: float = Field(
        120.0, gt=0, description="A worker that beats but has not claimed for so long is `silent`."
    )

    delivery_timeout_seconds: float = Field(
        15.0,
        gt=0,
        le=300,
        description="Ceiling of one call to a destination that names none, to the last byte of the answer.",
    )
    delivery_max_in_flight: int = Field(
        10, ge=1, le=1000, description="Calls under way to a destination that names no number, in each process."
    )
    delivery_grace_seconds: float = Field(
        10.0, ge=0, le=300, description="How long calls that are under way are waited for when the service stops."
    )
    delivery_mode: Literal["binary", "structured"] = Field(
        "binary",
        description="How events are delivered: CloudEvents with attributes as headers, or as one JSON document.",
    )
    delivery_allowed_targets: _Words = Field(
        (),
        description="What may be called besides the public internet: CIDRs, addresses, host names, `*.suffix` (commas or JSON).",
    )
    delivery_max_connections: int = Field(100, ge=1, le=10_000, description="Calls under way at once in this process.")
    delivery_max_connections_per_host: int = Field(10, ge=1, le=10_000, description="The same, to one host.")
    delivery_ca_file: str = Field(
        "", description="PEM file of authorities that destinations may have certificates of, besides the public ones."
    )
    encryption_keys: _Secrets = Field(
        (),
        description="Keys for the secrets of destinations, each 32 random bytes in base64 (commas or JSON): the first encrypts, "
        "all decrypt. On SQLite `tenure serve` makes one beside the database (`….key`) if none is set.",
    )

    health_queue_depth: int = Field(10_000, ge=0, description="`/health` warns when more jobs wait in a queue.")
    health_oldest_seconds: float = Field(
        300.0, ge=0, description="`/health` warns when a job has been available for longer."
    )
    health_dead: int = Field(100, ge=0, description="`/health` warns when more jobs of a queue are dead.")
    health_outbox_pending: int = Field(
        10_000, ge=0, description="`/health` warns when more messages of a destination are not sent yet."
    )
    health_outbox_oldest_seconds: float = Field(
        300.0, ge=0, description="`/health` warns when a message could have been delivered for longer."
    )
    health_transaction_seconds: float = Field(
        300.0,
        ge=0,
        description="`/health` warns when anybody's transaction has been open in the database for longer: finished rows stay.",
    )
    health_journal_bytes: int = Field(
        64 * 1024 * KIB,
        ge=16 * 1024 * KIB,
        description="SQLite only. `/health` warns when the journal is larger: a reader holds it.",
    )

    @field_validator("table_prefix")
    @classmethod
    def _prefix_is_allowed(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("must match [a-z][a-z0-9_]{0,23}")
        return value

    @field_validator("jobs_backoff_seconds", "outbox_ask_backoff_seconds")
    @classmethod
    def _backoff_is_usable(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not 1 <= len(value) <= 32 or any(not 0 <= pause <= 2_592_000 for pause in value):
            raise ValueError("must be a list of 1 to 32 numbers from 0 to 2592000")
        return value


def load(**overrides: object) -> Settings:
    """Read the environment (and `TENURE_<NAME>_FILE` files); a wrong setting raises `StartupProblem` with one line."""
    values: dict[str, object] = dict(_from_files())
    values.update({name: value for name, value in overrides.items() if value is not None})
    try:
        return Settings(**values)  # type: ignore[arg-type]  # pydantic validates what the environment gave as text
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        name = "TENURE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise StartupProblem(f"setting {name} is wrong: {first['msg']}", exit_code=2) from None


def unknown() -> list[str]:
    """A line for each TENURE_ variable that is no setting, so that a misspelt one does not pass in silence."""
    known = {f"TENURE_{name.upper()}" for name in Settings.model_fields}
    known |= {f"{name}_FILE" for name in known} | {
        "TENURE_URL", "TENURE_API_KEY", "TENURE_API_KEY_FILE", "TENURE_LOCK_NAME", "TENURE_LOCK_FENCE",
    }  # fmt: skip
    lines: list[str] = []
    for name in sorted(os.environ):
        if name.startswith("TENURE_") and name not in known and not name.startswith(_FOR_TESTS):
            near = difflib.get_close_matches(name, known, 1)
            lines.append(f"there is no setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return lines


def _from_files() -> dict[str, str]:
    """Settings whose value stands in a file, as container platforms hand secrets over."""
    found: dict[str, str] = {}
    for name in Settings.model_fields:
        if name == "table_prefix":  # no secret, and read before any file could be
            continue
        path = os.environ.get(f"TENURE_{name.upper()}_FILE")
        if path is None:
            continue
        if f"TENURE_{name.upper()}" in os.environ:
            raise StartupProblem(
                f"set either TENURE_{name.upper()} or TENURE_{name.upper()}_FILE, not both", exit_code=2
            )
        try:
            found[name] = Path(path).read_text(encoding="utf-8").strip()
        except OSError as fault:
            raise StartupProblem(f"TENURE_{name.upper()}_FILE cannot be read: {fault.strerror}", exit_code=2) from None
    return found


def table_prefix() -> str:
    """The prefix alone, for the table definitions, which are made when their modules are imported."""
    value = os.environ.get("TENURE_TABLE_PREFIX", "tenure_")
    if not _PREFIX.fullmatch(value):
        raise StartupProblem("setting TENURE_TABLE_PREFIX is wrong: must match [a-z][a-z0-9_]{0,23}", exit_code=2)
    return value
