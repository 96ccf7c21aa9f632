"""Logs: one event in one line, JSON unless a person is looking. Whatever looks like a secret is masked, wherever it stands.

    log = structlog.get_logger("tenure.x");  log.info("snake_case_event", key=value)

The standard library's loggers (uvicorn, SQLAlchemy, asyncio) come out in the same form. Uvicorn's own access log is off:
`app.http.middleware` writes the access line.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"
# the key of a field whose value nobody may read; `grant_digest` and the like are no secrets, but help nobody either
_SECRET_NAME = re.compile(
    r"(?i)(authorization|cookie|token|secret|passw(or)?d|pwd|api_?key$|dsn|credential|database_url)"
)
# what a secret looks like inside a text: our keys, secrets of webhooks, bearer headers, passwords in URLs, reservation tokens
_SECRET_TEXT = re.compile(
    r"tnr_[0-9A-Za-z]+_[0-9A-Za-z]+"
    r"|whsec_[A-Za-z0-9+/=]+"
    r"|(?i:bearer)\s+[^\s\"',]+"
    r"|(?<=://)[^/\s:@]*:[^@\s/]*(?=@)"
    r"|(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{86}(?![A-Za-z0-9_-])"
)
_NUMBERS = frozenset({int, float, bool})
_PLAIN = frozenset({"level", "timestamp", "logger", "request_id", "route", "method", "principal"})


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask fields by their names, and secrets inside all other texts."""
    for name, value in event.items():
        if name in _PLAIN or value is None:
            continue
        if _is_secret(name):
            event[name] = MASK
        elif type(value) not in _NUMBERS:
            event[name] = masked(value)
    return event


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def masked(value: Any) -> Any:
    """`value` with every secret inside it masked; containers are copied."""
    if isinstance(value, str):
        return _SECRET_TEXT.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: MASK if _is_secret(str(key)) else masked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(inner) for inner in value]
    return value


def set_up(level: str = "info", form: Literal["auto", "json", "console"] = "auto") -> None:
    """Set up the logs of this process, on stderr. Call it once, before the server starts."""
    number = logging.getLevelNamesMapping()[level.upper()]
    human = form == "console" or (form == "auto" and sys.stderr.isatty())
    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # before it is redacted, and plain: a pretty one shows local variables
        redact,
    ]
    if human:
        chain.append(structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
        factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    else:
        chain.append(_line)
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    _route_standard_loggers(number)


def _line(_logger: WrappedLogger, _method: str, event: EventDict) -> bytes:
    return msgspec.json.encode(event, enc_hook=str)


class _ToStructlog(logging.Handler):
    """Hands records of the standard library on."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        log = structlog.get_logger()
        log.log(record.levelno, "library_log", logger=record.name, message=text, exc_info=record.exc_info)


def _route_standard_loggers(number: int) -> None:
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(max(number, logging.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(max(number, logging.INFO))
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate, access.disabled = [], False, True
    for noisy in ("alembic", "httpx", "sqlalchemy.engine"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
