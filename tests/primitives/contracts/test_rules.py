"""Each rule with what breaks it and what does not; exemptions, and the day on which they end. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from app.clock import from_datetime
from app.errors import Refusal
from app.jsontext import parse
from app.primitives.contracts.model.contract import Contract, Rule
from app.primitives.contracts.model.effective import Defaults, InEffect
from app.primitives.contracts.model.judging import Judgement, end_of, judge
from app.primitives.contracts.model.rules import LAWS
from app.primitives.contracts.model.terms import terms_of
from app.primitives.jobs.model.terms import Handler
from app.settings import Settings
from tests.primitives.contracts.promises import REASON, contract, exempt, good

DEFAULTS = Defaults()
NOW = from_datetime(datetime(2026, 12, 1, 12, tzinfo=UTC))
HOUR = 3600

UNLIMITED = {"unlimited_reason": "It waits for a lock that a person holds for days, and must go on waiting."}


def judged(defaults: Defaults = DEFAULTS, now: int = NOW, **changes: Any) -> Judgement:
    return judge(contract(**changes), "billing.charge", 1, defaults, now)


def violated(**changes: Any) -> list[str]:
    return [str(one.rule) for one in judged(**changes).violations]


# (rule, what is changed in the good contract, the pointer of the finding or None if the rule holds)
CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("QUEUE001", {}, None),
    ("QUEUE001", {"retry": None}, "/retry"),
    ("QUEUE001", {"retry": {}}, "/retry"),
    ("QUEUE001", {"retry": {"max_exceptions": 3}}, "/retry"),
    ("QUEUE001", {"retry": {"max_attempts": 1}}, "/retry/max_attempts"),
    ("QUEUE001", {"retry": {"max_attempts": 2}}, None),
    ("QUEUE001", {"retry": {"retry_until_seconds": 600}}, None),
    ("QUEUE001", {"retry": {"retry_until_seconds": 600, "max_exceptions": 3}}, None),
    ("QUEUE001", {"retry": {"unlimited_reason": "legacy"}}, "/retry/unlimited_reason"),
    ("QUEUE001", {"retry": {"unlimited_reason": ""}}, "/retry/unlimited_reason"),
    ("QUEUE001", {"retry": UNLIMITED}, None),
    ("QUEUE002", {"backoff_seconds": None}, "/backoff_seconds"),
    ("QUEUE002", {"backoff_seconds": [0]}, "/backoff_seconds"),
    ("QUEUE002", {"backoff_seconds": [0, 0, 0]}, "/backoff_seconds"),
    ("QUEUE002", {"backoff_seconds": [0, 10]}, None),
    ("QUEUE002", {"backoff_seconds": None, "retry": {"retry_until_seconds": 600}}, None),
    ("QUEUE002", {"backoff_seconds": None, "retry": UNLIMITED}, "/backoff_seconds"),
    ("QUEUE002", {"backoff_seconds": None, "retry": {"max_attempts": 1}}, None),
    ("QUEUE002", {"backoff_seconds": None, "retry": None}, "/backoff_seconds"),  # the settings allow five attempts
    ("QUEUE003", {"terminal_handler": None}, "/terminal_handler"),
    ("QUEUE003", {"terminal_handler": {"outbox": {"destination": "support", "type": "charge.failed"}}}, None),
    (
        "QUEUE003",
        {"terminal_handler": {"enqueue": {"queue": "q", "type": "billing.charge", "schema_version": 2}}},
        "/terminal_handler/enqueue/type",
    ),
    ("QUEUE004", {"trigger": "direct"}, None),
    ("QUEUE004", {"trigger": "event"}, "/dedup"),
    ("QUEUE004", {"trigger": "event", "dedup": {"unique_by": "/site_id"}}, None),
    ("QUEUE004", {"trigger": "event", "dedup": {"no_overlap_by": "/site_id"}}, None),
    ("QUEUE004", {"trigger": "event", "dedup": {"upstream_debounce_reason": REASON}}, None),
    (
        "QUEUE004",
        {"trigger": "event", "dedup": {"upstream_debounce_reason": "because"}},
        "/dedup/upstream_debounce_reason",
    ),
    ("QUEUE004", {"trigger": "direct", "dedup": {"upstream_debounce_reason": "because"}}, None),
    ("QUEUE005", {"external_calls": False, "timeout_seconds": None, "heartbeat_seconds": 15}, None),
    ("QUEUE005", {"external_calls": True}, None),
    ("QUEUE005", {"external_calls": True, "timeout_seconds": None}, "/timeout_seconds"),
    ("QUEUE005", {"external_calls": True, "timeout_seconds": 60}, "/timeout_seconds"),  # the usual lease is 60
    ("QUEUE005", {"external_calls": True, "timeout_seconds": 60, "lease_seconds": 60}, "/timeout_seconds"),
    ("QUEUE005", {"external_calls": True, "timeout_seconds": 60, "lease_seconds": 60.5}, None),
    ("QUEUE005", {"external_calls": True, "timeout_seconds": 90, "heartbeat_seconds": 15}, "/timeout_seconds"),
    ("QUEUE006", {"effects": "non_idempotent"}, "/retry"),
    ("QUEUE006", {"effects": "non_idempotent", "on_lease_loss": "unknown"}, "/retry"),
    ("QUEUE006", {"effects": "non_idempotent", "retry": {"max_attempts": 1}}, "/on_lease_loss"),  # by the settings
    (
        "QUEUE006",
        {"effects": "non_idempotent", "retry": {"max_attempts": 1}, "on_lease_loss": "retry"},
        "/on_lease_loss",
    ),
    ("QUEUE006", {"effects": "non_idempotent", "retry": {"max_attempts": 1}, "on_lease_loss": "unknown"}, None),
    ("QUEUE006", {"effects": "non_idempotent", "retry": None, "on_lease_loss": "unknown"}, "/retry"),
    (
        "QUEUE006",
        {"effects": "non_idempotent", "retry": {"retry_until_seconds": 60}, "on_lease_loss": "unknown"},
        "/retry",
    ),
    *(("QUEUE006", {"effects": one}, None) for one in ("none", "idempotent", "keyed", "split", "event_replay", None)),
    ("QUEUE007", {"heartbeat_seconds": 20}, None),
    ("QUEUE007", {"heartbeat_seconds": 20.1}, "/heartbeat_seconds"),
    ("QUEUE007", {"heartbeat_seconds": 20.1, "lease_seconds": 61}, None),
    ("QUEUE007", {"timeout_seconds": 60}, "/timeout_seconds"),
    ("QUEUE007", {"timeout_seconds": 59.9}, None),
    ("QUEUE007", {"timeout_seconds": 600, "heartbeat_seconds": 15}, None),
    ("QUEUE007", {"timeout_seconds": None}, None),  # it promises nothing of time
    ("QUEUE007", {"timeout_seconds": None, "heartbeat_seconds": 15}, None),
    ("QUEUE007", {"retry": {"retry_until_seconds": 7 * 24 * HOUR - 46}}, None),
    ("QUEUE007", {"retry": {"retry_until_seconds": 7 * 24 * HOUR - 45}}, "/retry"),  # the last attempt takes 45 more
    ("QUEUE007", {"retry": {"max_attempts": 3}, "backoff_seconds": [251_500]}, None),
    ("QUEUE007", {"retry": {"max_attempts": 3}, "backoff_seconds": [252_500]}, "/retry"),  # with jitter, over a week
    ("QUEUE007", {"retry": UNLIMITED, "backoff_seconds": [900]}, None),
]


@pytest.mark.parametrize(("rule", "changes", "pointer"), CASES, ids=lambda one: str(one)[:80])
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: str, changes: dict[str, Any], pointer: str | None) -> None:
    found = {str(one.rule): one for one in judged(**changes).violations}
    assert (found[rule].pointer if rule in found else None) == pointer
    for finding in found.values():
        assert finding.detail.endswith(".")
        assert finding.detail[0].isupper()
        assert finding.page == f"/problems/{finding.rule}"


def test_a_good_contract_breaks_no_rule() -> None:
    assert judged() == Judgement()


def test_a_contract_that_says_nothing_breaks_what_can_be_broken_by_silence() -> None:
    empty = parse(Contract, b"{}", max_value_bytes=10)
    found = judge(empty, "t", 1, DEFAULTS, NOW)
    assert [str(one.rule) for one in found.violations] == ["QUEUE001", "QUEUE002", "QUEUE003"]


def test_work_that_must_not_happen_twice_has_one_valid_form() -> None:
    once = {"effects": "non_idempotent", "retry": {"max_attempts": 1}, "on_lease_loss": "unknown"}
    assert violated(**once) == ["QUEUE001"]
    found = judged(**once, exemptions=[exempt("QUEUE001")])
    assert found.valid
    assert [(str(one.finding.rule), one.reason, one.until) for one in found.exempted] == [("QUEUE001", REASON, None)]


def test_one_rule_broken_in_two_ways_is_one_finding_that_tells_of_both() -> None:
    (finding,) = judged(heartbeat_seconds=30, retry={"retry_until_seconds": 8 * 24 * HOUR}).violations
    assert (str(finding.rule), finding.pointer) == ("QUEUE007", "/heartbeat_seconds")
    assert "heartbeats" in finding.detail
    assert "kept" in finding.detail


@pytest.mark.parametrize(
    ("changes", "settings", "rule"),
    [
        ({"retry": None}, {"attempts": 1}, "QUEUE002"),
        ({"effects": "non_idempotent", "retry": {"max_attempts": 1}}, {"on_lease_loss": "unknown"}, "QUEUE006"),
        ({"timeout_seconds": 90}, {"lease": 100.0}, "QUEUE007"),
    ],
)
def test_a_silent_contract_is_judged_by_the_settings(
    changes: dict[str, Any], settings: dict[str, Any], rule: str
) -> None:
    changes = {"backoff_seconds": None, **changes} if rule == "QUEUE002" else changes
    assert rule in violated(**changes)
    other = judged(replace(DEFAULTS, **settings), **changes)
    assert rule not in [str(one.rule) for one in other.violations]


def test_a_shorter_retention_breaks_the_chain() -> None:
    assert [str(one.rule) for one in judged(replace(DEFAULTS, retention=600.0)).violations] == ["QUEUE007"]


def test_the_defaults_are_those_of_the_settings() -> None:
    assert Defaults.of(Settings()) == DEFAULTS


def test_the_horizon_counts_every_pause_with_its_jitter_and_every_attempt() -> None:
    effect = InEffect.of(contract(retry={"max_attempts": 7}, backoff_seconds=[10, 100]), DEFAULTS)
    assert effect.horizon() == pytest.approx((10 + 5 * 100) * 1.2 + 7 * 45)
    assert InEffect.of(contract(retry={"max_attempts": 1}), DEFAULTS).horizon() == 45


# -- exemptions ------------------------------------------------------------------------------------------------------------


def test_an_exemption_covers_its_own_rule_alone_and_is_reported() -> None:
    found = judged(terminal_handler=None, retry={"max_attempts": 1}, exemptions=[exempt("QUEUE003")])
    assert [str(one.rule) for one in found.violations] == ["QUEUE001"]
    assert [str(one.finding.rule) for one in found.exempted] == ["QUEUE003"]


def test_an_exemption_that_nothing_needs_is_not_reported() -> None:
    assert judged(exemptions=[exempt("QUEUE003")]) == Judgement()


def test_an_exemption_without_a_real_reason_covers_nothing() -> None:
    (finding,) = judged(terminal_handler=None, exemptions=[exempt("QUEUE003", "The gate complained!")]).violations
    assert "no real reason" in finding.detail


def test_an_exemption_holds_until_the_end_of_its_last_day_in_utc() -> None:
    last = date(2026, 12, 31)
    midnight = from_datetime(datetime(2027, 1, 1, tzinfo=UTC))
    assert end_of(last) == midnight
    lapsing = {"terminal_handler": None, "exemptions": [exempt("QUEUE003", expires_on="2026-12-31")]}
    before, after = judged(now=midnight - 1, **lapsing), judged(now=midnight, **lapsing)
    assert (before.valid, before.valid_until, before.lapses) == (True, midnight, ("QUEUE003",))
    assert (after.valid, after.valid_until, after.lapses) == (False, None, ())
    assert "expired on 2026-12-31" in after.violations[0].detail


def test_what_lapses_first_is_told_with_what_is_violated_already() -> None:
    found = judged(
        terminal_handler=None,
        backoff_seconds=None,
        timeout_seconds=90,
        exemptions=[exempt("QUEUE003", expires_on="2027-03-01"), exempt("QUEUE007", expires_on="2027-02-01")],
    )
    assert found.valid_until == end_of(date(2027, 2, 1))
    assert found.lapses == ("QUEUE002", "QUEUE007")


def test_the_last_day_of_all_can_still_be_told() -> None:
    found = judged(terminal_handler=None, exemptions=[exempt("QUEUE003", expires_on="9999-12-31")])
    assert found.valid_until == end_of(date(9999, 12, 31))


# -- the texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_its_texts_and_an_example_that_keeps_it(rule: Rule) -> None:
    law = LAWS[rule]
    assert len(law.why) > 60
    assert len(law.mend) > 60
    kept = parse(Contract, msgspec.json.encode(good(**law.example)), max_value_bytes=1 << 16)
    assert rule not in [one.rule for one in judge(kept, "t", 1, DEFAULTS, NOW).violations]
    assert [*kept.poor_reasons()] == []


# -- the terms -------------------------------------------------------------------------------------------------------------


def test_terms_say_what_the_contract_says_in_the_units_of_jobs() -> None:
    said = contract(
        lease_seconds=90,
        on_lease_loss="unknown",
        max_lease_losses=2,
        dedup={"unique_by": "/a"},
        payload_schema={"type": "object"},
        retry={"max_attempts": 4, "max_exceptions": 2},
    )
    terms = terms_of(said, "billing.charge", 3, judge(said, "billing.charge", 3, DEFAULTS, NOW))
    assert (terms.type, terms.schema_version, terms.max_attempts, terms.unlimited) == ("billing.charge", 3, 4, False)
    assert (terms.retry_until, terms.max_exceptions, terms.backoff) == (None, 2, (10, 60, 300, 900))
    assert (terms.timeout, terms.lease, terms.on_lease_loss) == (45_000_000, 90_000_000, "unknown")
    assert (terms.max_lease_losses, terms.payload_schema) == (2, b'{"type":"object"}')
    assert terms.handler == Handler("billing", "billing.invoice_failed", 1, None)
    assert (terms.unique_by, terms.no_overlap_by) == ("/a", None)
    assert (terms.violations, terms.valid_until, terms.lapses) == ((), None, ())


def test_effects_that_are_not_to_be_repeated_bound_the_attempts_of_every_job() -> None:
    for effects, most in (("non_idempotent", 1), ("idempotent", None)):
        said = contract(effects=effects, retry={"max_attempts": 1}, on_lease_loss="unknown")
        assert terms_of(said, "t", 1, judge(said, "t", 1, DEFAULTS, NOW)).at_most == most


def test_a_deadline_takes_the_place_of_the_count() -> None:
    said = contract(retry={"retry_until_seconds": 600}, terminal_handler=None)
    terms = terms_of(said, "t", 1, judge(said, "t", 1, DEFAULTS, NOW))
    assert (terms.max_attempts, terms.unlimited, terms.retry_until) == (None, True, 600_000_000)
    assert terms.violations == ("QUEUE003",)


# -- form ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"retry": {"max_attempts": 3, "retry_until_seconds": 9}}, "#/retry"),
        ({"retry": {"unlimited_reason": REASON, "retry_until_seconds": 9}}, "#/retry"),
        ({"retry": {"max_attempts": 0}}, "#/retry/max_attempts"),
        ({"retry": {"max_attempts": "3"}}, "#/retry/max_attempts"),
        ({"backoff_seconds": []}, "#/backoff_seconds"),
        ({"backoff_seconds": [10, 5]}, "#/backoff_seconds"),
        ({"backoff_seconds": [-1]}, "#/backoff_seconds/0"),
        ({"terminal_handler": {}}, "#/terminal_handler"),
        (
            {
                "terminal_handler": {
                    "enqueue": {"queue": "q", "type": "t"},
                    "outbox": {"destination": "d", "type": "t"},
                }
            },
            "#/terminal_handler",
        ),
        ({"terminal_handler": {"enqueue": {"queue": "a b", "type": "t"}}}, "#/terminal_handler/enqueue/queue"),
        ({"dedup": {}}, "#/dedup"),
        ({"dedup": {"unique_by": "/a", "no_overlap_by": "/b"}}, "#/dedup"),
        ({"dedup": {"unique_by": "site_id"}}, "#/dedup/unique_by"),
        ({"trigger": "sometimes"}, "#/trigger"),
        ({"effects": "harmless"}, "#/effects"),
        ({"external_calls": 1}, "#/external_calls"),
        ({"lease_seconds": 4}, "#/lease_seconds"),
        ({"heartbeat_seconds": 0}, "#/heartbeat_seconds"),
        ({"exemptions": [exempt("QUEUE999")]}, "#/exemptions/0/rule"),
        ({"exemptions": [exempt("QUEUE001"), exempt("QUEUE001")]}, "#/exemptions"),
        ({"exemptions": [exempt("QUEUE001", expires_on="2026-02-29")]}, "#/exemptions/0/expires_on"),
        ({"exemptions": [exempt("QUEUE001", expires_on="tomorrow")]}, "#/exemptions/0/expires_on"),
        ({"gate": "open"}, "#/gate"),
        ({"description": "\x00"}, "#/description"),
    ],
    ids=lambda one: str(one)[:60],
)
def test_what_is_malformed_is_refused_with_its_place(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Refusal) as refused:
        contract(**changes)
    assert [one.pointer for one in refused.value.errors] == [pointer]


def test_the_document_is_what_was_said_and_nothing_more() -> None:
    said = b'{"timeout_seconds":45.0,"retry":null,"payload_schema":{"b": 1.0e2,  "a":[]}}'
    document = parse(Contract, said, max_value_bytes=100).document()
    assert document == b'{"timeout_seconds":45.0,"payload_schema":{"b": 1.0e2,  "a":[]}}'
    assert parse(Contract, document, max_value_bytes=100).document() == document
