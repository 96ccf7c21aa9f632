"""Whether a reason is one. A machine cannot judge the truth of a text; it can refuse what is surely no reason."""

from __future__ import annotations

import re
import unicodedata

LEAST_CHARACTERS = 20
LEAST_WORDS = 4
LEAST_LETTERS = 6

# Said instead of a reason. Compared without case and punctuation; each may also hide within a longer text.
EXCUSES = (
    "the gate complained", "the check complained", "the linter complained", "ci complained", "ci failed",
    "to make ci pass", "make ci green", "to make the check pass", "to make the gate pass", "to silence the check",
    "this was quicker", "it was quicker", "this was faster", "this was easier", "no time", "not enough time",
    "we had no time", "for now", "temporary", "temporarily", "will fix later", "will be fixed later", "fix later",
    "to be done", "to be fixed", "later", "to do", "todo", "fixme", "tbd", "wip", "hack", "legacy", "legacy code",
    "legacy reasons", "historical reasons", "it has always been so", "it has always been like this",
    "works on my machine", "it works", "works fine", "not needed", "not necessary", "not applicable", "n a", "na",
    "none", "nothing", "no reason", "no reason given", "unknown", "because", "just because", "because i said so",
    "reason", "some reason", "a good reason", "for reasons", "see above", "as above", "same as above", "as discussed",
    "exempt", "exempted", "exemption", "ignore", "ignored", "skip", "skipped", "placeholder", "lorem ipsum", "test",
    "asdf", "qwerty", "foo", "bar", "baz", "xxx", "blah",
)  # fmt: skip
_EXCUSE = re.compile(r"\b(?:" + "|".join(sorted((re.escape(one) for one in EXCUSES), key=len, reverse=True)) + r")\b")
_NO_WORD = re.compile(r"[\W_]+")


def why_not(reason: str) -> str | None:
    """What keeps `reason` from being a reason; None if nothing does. The text never holds what was submitted."""
    plain = _plain(reason)
    if not plain:
        return "must give a reason; it is blank"
    rest = _plain(_EXCUSE.sub(" ", plain))
    if not rest:
        return "must give the constraint that makes it right, not an excuse"
    if _weight(rest) < LEAST_CHARACTERS:
        return f"must give the constraint that makes it right, in at least {LEAST_CHARACTERS} characters"
    words = {word for word in rest.split() if not word.isdigit()}
    if sum(_words(word) for word in words) < LEAST_WORDS or len(set(rest) - {" "}) < LEAST_LETTERS:
        return "must give the constraint that makes it right, in several words"
    return None


def _plain(text: str) -> str:
    """In one spelling: compatible forms folded, no case, every run of other than letters and digits a space."""
    return _NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def _wide(text: str) -> int:
    return sum(unicodedata.east_asian_width(character) in ("W", "F") for character in text)


def _weight(text: str) -> int:
    """Characters; those of scripts that say a syllable or a word in each count twice."""
    return len(text) + _wide(text)


def _words(word: str) -> int:
    """Scripts that set no spaces between words: two characters make about one."""
    return max(1, _wide(word) // 2)
