"""What a producer answers when it is asked about a message that it prepared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from app.outgoing.replies import Fate, Reply
from app.primitives.outbox.model.states import Decision

_WORDS = {"committed": Decision.CONFIRMED, "rolled_back": Decision.ABORTED}
UNDECIDED = "undecided"
# an object may name its word by any of these; that they agree is seen to
_MEMBERS = ("decision", "state", "status", "outcome", "result", "answer")


@dataclass(frozen=True, slots=True)
class Answer:
    """`decision` None: nothing is decided, and `said` tells why. `reached`: the producer may have heard the question."""

    decision: Decision | None
    said: str
    reached: bool = True


def read(reply: Reply) -> Answer:
    """Only a whole 2xx answer that says exactly one of the words decides: `committed`, `rolled_back`, as plain text, as a JSON
    string, or as `{"decision": …}`. A 404 is no `rolled_back`: who does not know a message may not have committed it *yet*.
    """
    if reply.fate is not Fate.ANSWERED or reply.status is None:
        return Answer(None, f"{reply.reason}: {reply.detail}"[:500], reached=reply.fate is not Fate.NOT_SENT)
    if not 200 <= reply.status < 300:
        return Answer(None, f"answered with status {reply.status}")
    words = _words(reply.body) if reply.body_complete else set()
    if len(words) != 1:
        return Answer(None, "the answer says none of committed, rolled_back, undecided")
    (word,) = words
    return Answer(_WORDS.get(word), word)


def _words(body: bytes) -> set[str]:
    """The words that the answer says, of those that mean something."""
    try:
        text = body.decode().strip()
        said: Any = msgspec.json.decode(text) if text[:1] in ('"', "{") else text
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return set()
    candidates = [said.get(name) for name in _MEMBERS] if isinstance(said, dict) else [said]
    return {one for one in candidates if isinstance(one, str) and one in (*_WORDS, UNDECIDED)}
