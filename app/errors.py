"""Every refusal that Tenure gives, with its stable code, status and title.

Leaf module: nothing here knows HTTP, SQL or a primitive. A `Refusal` is a value that an op returns for one command of a
batch; it is also an exception, so that code outside a batch may raise it. Texts never hold a submitted value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of problem: `name` is what clients switch on, `status` the HTTP status, `retryable` whether the very same
    request may succeed later. `advice` says what the caller should do next; it fills the page `/problems/<name>`.
    """

    name: str
    status: int
    title: str
    retryable: bool
    advice: str


def _code(name: str, status: int, title: str, advice: str, *, retryable: bool = False) -> Code:
    return Code(name=name, status=status, title=title, retryable=retryable, advice=advice)


VALIDATION_FAILED = _code(
    "validation_failed",
    422,
    "The request is not valid",
    "Mend the fields named in `errors` and send it again. Malformed JSON is answered with status 400.",
)
UNSUPPORTED_MEDIA_TYPE = _code(
    "unsupported_media_type",
    415,
    "The body is not JSON",
    "Send the body as UTF-8 JSON with the header `Content-Type: application/json` (with curl: `--json`).",
)
METHOD_NOT_ALLOWED = _code(
    "method_not_allowed",
    405,
    "This path does not take this method",
    "Use one of the methods in the `Allow` header.",
)
INVALID_CURSOR = _code(
    "invalid_cursor",
    400,
    "The cursor is not one of ours",
    "Start again without `cursor`, and pass on `next_cursor` unchanged together with the same filters.",
)
UNAUTHENTICATED = _code(
    "unauthenticated",
    401,
    "An API key is needed",
    "Send `Authorization: Bearer <api key>` with a key that is in force.",
)
FORBIDDEN = _code(
    "forbidden",
    403,
    "This key may not do this",
    "Use a key with the role and the name pattern that this call needs.",
)
NOT_FOUND = _code("not_found", 404, "There is no such thing", "Check the id or the path; ended work is purged in time.")
PAYLOAD_TOO_LARGE = _code(
    "payload_too_large",
    413,
    "The body or one value in it is too large",
    "Send less, or store the data elsewhere and send a reference to it.",
)
IDEMPOTENCY_CONFLICT = _code(
    "idempotency_conflict",
    409,
    "This key was used for something else",
    "Use a new key for new content; repeat the old content unchanged to get its answer again.",
)
UNIQUE_CONFLICT = _code(
    "unique_conflict",
    409,
    "Work with this unique key exists",
    "`job_id` names the job that holds the key, if you may see it. Wait until it ends, or choose `keep`; only a job that was "
    "never started can be replaced.",
)
RESERVATION_LOST = _code(
    "reservation_lost",
    409,
    "The reservation is no longer held",
    "Stop the work at once and throw its result away: somebody else may hold it now. `reason` says what happened.",
)
SETTLEMENT_CONFLICT = _code(
    "settlement_conflict",
    409,
    "This reservation was settled otherwise",
    "The first settlement stands. A repeat must be the same in all its content.",
)
VERDICT_REQUIRED = _code(
    "verdict_required",
    409,
    "The outcome is unknown and needs a verdict",
    "Find out whether the effect happened, then call `reconcile` with the evidence.",
)
VERDICT_CONFLICT = _code(
    "verdict_conflict", 409, "Another verdict stands", "The first verdict stands; read the work's events."
)
STATE_CONFLICT = _code(
    "state_conflict",
    409,
    "The state does not allow this",
    "Read the current state, and choose an action that it allows.",
)
GATE_CLOSED = _code(
    "gate_closed", 409, "The gate is closed", "Wait until the gate opens, or ask its operator.", retryable=True
)
LOCKED = _code(
    "locked", 423, "The lock is held by another", "Try again after `Retry-After`, or wait longer.", retryable=True
)
CONTRACT_REQUIRED = _code(
    "contract_required", 422, "This job type needs a contract", "Register a contract for the type first."
)
CONTRACT_VIOLATED = _code(
    "contract_violated",
    422,
    "The job type's contract is not valid",
    "Mend the contract where `rules` says, or have them exempted.",
)
PAYLOAD_INVALID = _code("payload_invalid", 422, "The payload does not fit its schema", "Mend what `errors` names.")
QUEUE_FULL = _code(
    "queue_full",
    429,
    "The queue is full",
    "Slow down and repeat after `Retry-After`; an operator may raise `max_depth`.",
    retryable=True,
)
OVERLOADED = _code("overloaded", 503, "Too much is waiting", "Repeat after `Retry-After`, with jitter.", retryable=True)
DATABASE_UNAVAILABLE = _code(
    "database_unavailable",
    503,
    "The database does not answer",
    "Repeat the same request (same ids, keys and tokens) after `Retry-After`: it is safe, also if the first try was done.",
    retryable=True,
)
SCHEMA_OUTDATED = _code(
    "schema_outdated",
    503,
    "The database schema is behind this release",
    "Run `tenure migrate`.",
    retryable=True,
)
INTERNAL = _code(
    "internal",
    500,
    "Tenure failed",
    "Report the `request_id`. The request may be repeated with the same ids and keys.",
    retryable=True,
)

CODES: tuple[Code, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Code))


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault in a request body: `pointer` is a JSON Pointer (`#/jobs/0/priority`), `detail` says what is wanted."""

    pointer: str
    detail: str


@dataclass(eq=False)
class Refusal(Exception):
    """A command that was refused, and why. Nothing was changed by it.

    `detail` is one sentence for a person. `extra` holds typed extension members of the problem (never a submitted value,
    never a token). `retry_after_seconds` becomes the header `Retry-After`. `status` overrides the code's own. Not frozen:
    Python itself writes to an exception that it passes on.
    """

    code: Code
    detail: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[FieldError, ...] = ()
    retry_after_seconds: int | None = None
    status: int | None = None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}"

    @property
    def http_status(self) -> int:
        return self.status if self.status is not None else self.code.status


def not_found(what: str) -> Refusal:
    """The usual answer for an id that names nothing."""
    return Refusal(NOT_FOUND, f"There is no such {what}, or it was purged.")


class StartupProblem(Exception):
    """The process must not start; the message is the one clear line that the operator sees. `exit_code` as documented."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
