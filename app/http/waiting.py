"""Calls that wait at a desk: who has left meanwhile, and whose key has been revoked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.errors import UNAUTHENTICATED, Refusal
from app.http.call import Call


def watch(call: Call[Any, Any]) -> Callable[[], bool]:
    """What a desk asks before it gives anything: has the caller hung up, or was its key revoked while it waited?"""
    gone = call.gone
    return lambda: bool(gone) or not _in_force(call)


def require_in_force(call: Call[Any, Any]) -> None:
    """After a wait that brought nothing. Raises: Refusal `unauthenticated` if the key was revoked during it."""
    if not _in_force(call):
        raise Refusal(UNAUTHENTICATED, "This API key is no longer in force.")


def _in_force(call: Call[Any, Any]) -> bool:
    in_force: bool = call.runtime.state("keys").in_force(call.principal, call.runtime.clock.now())
    return in_force
