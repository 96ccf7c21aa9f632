"""What is a reason, and what is said instead of one."""

from __future__ import annotations

import pytest

from app.primitives.contracts.model.reasons import EXCUSES, why_not
from tests.primitives.contracts.promises import REASON


@pytest.mark.parametrize("excuse", EXCUSES)
def test_no_known_excuse_is_a_reason_however_it_is_dressed_up(excuse: str) -> None:
    for dressed in (
        excuse,
        f"  {excuse.upper()}!!! ",
        excuse.replace(" ", "_"),
        f"{excuse}; {excuse}. {excuse}, {excuse}",
    ):
        assert why_not(dressed) is not None, dressed


@pytest.mark.parametrize("text", [
    "", " ", "\t\n", ".", "-", "…", "?!?!?!?!?!?!?!?!?!?!?!?!", "x", "a" * 100, "aaaaa bbbbb aaaaa bbbbb ccccc aaaaa",
    "ha ha ha ha ha ha ha ha ha ha ha ha", "12345 67890 12345 67890 12345", "internationalisation",
    "The gate complained, and this was quicker.", "TODO: legacy, because of historical reasons", "Temporary for now",
    "too short a reason", "n/a n/a n/a n/a n/a n/a n/a",
    "\uff34\uff2f\uff24\uff2f\u3000\uff4c\uff45\uff47\uff41\uff43\uff59\u3000\uff4c\uff41\uff54\uff45\uff52",  # full width
])  # fmt: skip
def test_what_says_nothing_is_no_reason(text: str) -> None:
    assert why_not(text) is not None


@pytest.mark.parametrize("text", [
    REASON,
    "A repeat attempt would issue a second transfer.",
    "Because the provider bills each call, a second one costs money.",
    "Legacy importer: its files carry no id, so a repeat would double every row.",
    "Ein zweiter Versuch würde eine zweite Überweisung auslösen.",
    "支払いの二重実行を防ぐ手段が提供元にないため手動で再実行する",
    "Повторная попытка создаст второй платёж у провайдера.",  # noqa: RUF001 - Russian
])  # fmt: skip
def test_a_constraint_is_a_reason(text: str) -> None:
    assert why_not(text) is None


def test_the_answer_never_holds_what_was_submitted() -> None:
    assert "secret" not in (why_not("secret") or "")
