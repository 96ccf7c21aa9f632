"""What is asked of a call, and what is known when it has ended."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import httpcore
import structlog

from app.outgoing.backend import NotConnected, Progress

log = structlog.get_logger("tenure.outgoing")


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `timeout_seconds` is the ceiling of all of it, from waiting for a place to the last byte of the answer.

    `repr` shows neither headers nor body: they may hold secrets.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    timeout_seconds: float = 15.0


class Fate(StrEnum):
    ANSWERED = "answered"  # a whole answer came, or more of one than we read
    NOT_SENT = "not_sent"  # proven: no byte of the request was handed to a connection
    MAYBE_SENT = "maybe_sent"  # all else


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a call.

    `reason` is stable, and empty if ANSWERED. NOT_SENT: invalid_request, refused_address, dns, dns_timeout, connect,
    connect_timeout, tls, tls_timeout, pool_timeout, stopping, cancelled, failed. MAYBE_SENT: timeout, answer_timeout,
    reset, no_answer, answer_incomplete, protocol, cancelled, failed.
    `status` is the answer's, also where the rest of it was lost. `headers` are those that verdicts need, in small letters.
    `body` is the beginning of the answer; `body_complete` says whether it is all. `detail` is for people, of our own words.
    `received_at` is in seconds of this host's clock; only a Retry-After that is a date, beside no Date, is read by it.
    """

    fate: Fate
    reason: str = ""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    body_complete: bool = False
    detail: str = ""
    received_at: float = field(default_factory=time.time)


_DETAILS = {
    "invalid_request": "The URL or a header may not be sent; mend the destination.",
    "refused_address": "The host has an address that may not be called; see TENURE_DELIVERY_ALLOWED_TARGETS.",
    "dns": "The host's name has no address.",
    "dns_timeout": "The name servers did not answer in time.",
    "connect": "The host refused the connection or cannot be reached.",
    "connect_timeout": "The host did not take the connection in time.",
    "tls": "The host did not prove by TLS who it is.",
    "tls_timeout": "The host did not finish the TLS handshake in time.",
    "pool_timeout": "Too many calls were under way.",
    "stopping": "The service was stopping.",
    "cancelled": "The call was cut short by the service.",
    "failed": "The call failed inside the service; see its log.",
    "timeout": "No answer came in time.",
    "answer_timeout": "The answer was not whole in time.",
    "reset": "The connection broke after the request had begun.",
    "no_answer": "The connection was closed without an answer.",
    "answer_incomplete": "The answer broke off.",
    "protocol": "What came was no HTTP answer, or one without an end.",
}


def ended_by(progress: Progress, fault: BaseException) -> Reply:
    """The Reply of a call that `fault` ended."""
    reason = _maybe_sent(progress, fault) if progress.maybe_sent else _not_sent(progress, fault)
    if reason == "failed":
        log.error("outgoing_call_failed", error=type(fault).__name__, stage=progress.stage, sent=progress.maybe_sent)
    detail = _DETAILS[reason]
    if reason == "tls" and (why := _certificate_fault(fault)):
        detail = f"{detail} {why}."
    fate = Fate.MAYBE_SENT if progress.maybe_sent else Fate.NOT_SENT
    return Reply(fate, reason, status=progress.status, detail=detail)


def not_sent(reason: str) -> Reply:
    """A call that was refused before it began."""
    return Reply(Fate.NOT_SENT, reason, detail=_DETAILS[reason])


def _timed_out(fault: BaseException) -> bool:
    return isinstance(fault, TimeoutError | httpcore.TimeoutException)


def _not_sent(progress: Progress, fault: BaseException) -> str:
    if isinstance(fault, asyncio.CancelledError):
        return "cancelled"
    if isinstance(fault, NotConnected):
        return fault.reason
    if isinstance(fault, httpcore.LocalProtocolError):
        return "invalid_request"
    if _timed_out(fault):
        return "pool_timeout" if progress.stage == "waiting" else f"{progress.stage}_timeout"
    if progress.stage in ("connect", "tls") and isinstance(fault, httpcore.NetworkError | OSError | ValueError):
        return progress.stage
    return "failed"


def _maybe_sent(progress: Progress, fault: BaseException) -> str:
    if isinstance(fault, asyncio.CancelledError):
        return "cancelled"
    if _timed_out(fault):
        return "answer_timeout" if progress.received else "timeout"
    if isinstance(fault, httpcore.ProtocolError):
        if progress.ended:
            return "answer_incomplete" if progress.received else "no_answer"
        return "protocol"
    if isinstance(fault, httpcore.NetworkError | OSError):
        return "answer_incomplete" if progress.received else "reset"
    return "failed"


def _certificate_fault(fault: BaseException | None) -> str:
    """OpenSSL's words for what is wrong with a certificate, if that is it."""
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            text = str(getattr(fault, "verify_message", "")).rstrip(".")[:200]
            return text if text.isprintable() else ""
        fault = fault.__cause__ or fault.__context__
    return ""
