"""The schema for editors and docs/contracts.md against the code that judges."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator

from app.cli.contracts import check
from app.jsontext import parse
from app.primitives.contracts.model.contract import Rule
from app.primitives.contracts.model.drift import DriftKind
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.model.manifest import Ledger, Manifest
from app.primitives.contracts.model.review import review
from app.primitives.contracts.model.schema import manifest_schema
from tests.primitives.contracts.promises import GOOD, REASON, exempt, good

PAGE = (Path(__file__).parents[3] / "docs" / "contracts.md").read_text(encoding="utf-8")
VALIDATOR = Draft202012Validator(manifest_schema())

TAKEN: list[dict[str, Any]] = [
    {},
    {"$schema": "x", "contracts": [{"type": "a", **GOOD}], "excluded": [{"type": "b", "reason": REASON}]},
    {"contracts": [{"type": "a", "payload_schema": {"type": "object"}, "exemptions": [exempt("QUEUE001")]}]},
    {"contracts": [{"type": "a", **good(dedup={"unique_by": "/a"}, trigger="event")}]},
]
REFUSED: list[dict[str, Any]] = [
    {"contract": []},
    {"contracts": [{}]},
    {"contracts": [{"type": "a", "gate": "x"}]},
    {"contracts": [{"type": "a", "file": "x"}]},
    {"contracts": [{"type": "a b"}]},
    {"contracts": [{"type": "a", "retry": {"max_attempts": 0}}]},
    {"contracts": [{"type": "a", "backoff_seconds": []}]},
    {"contracts": [{"type": "a", "exemptions": [exempt("QUEUE008")]}]},
    {"excluded": [{"type": "a"}]},
]


def examples() -> dict[str, Any]:
    """Every manifest that the page shows."""
    shown: dict[str, Any] = {}
    for language, text in re.findall(r"```(yaml|toml|json)\n(.*?)```", PAGE, re.DOTALL):
        load = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": msgspec.json.decode}[language]
        value = load(text)
        if "contracts" in value:
            shown[language] = value
    return shown


def manifest_of(value: Any) -> Manifest:
    return parse(Manifest, msgspec.json.encode(value), max_value_bytes=1 << 18)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(manifest_schema())


@pytest.mark.parametrize("value", TAKEN, ids=str)
def test_the_schema_takes_what_is_taken(value: dict[str, Any]) -> None:
    manifest_of(value)
    assert [error.message for error in VALIDATOR.iter_errors(value)] == []


@pytest.mark.parametrize("value", REFUSED, ids=str)
def test_the_schema_refuses_what_is_refused(value: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(value)) != []


def test_every_manifest_on_the_page_keeps_every_rule_as_the_page_says() -> None:
    shown = examples()
    assert set(shown) == {"yaml", "toml", "json"}
    for value in shown.values():
        found = review(manifest_of(value), Ledger(version=1), Defaults(), 1_790_000_000_000_000)
        assert found.new == ()
        assert [error.message for error in VALIDATOR.iter_errors(msgspec.json.decode(msgspec.json.encode(value)))] == []


def test_the_page_tells_of_every_rule_field_kind_and_option() -> None:
    said = set(re.findall(r"`(QUEUE\d+)`", PAGE))
    assert said == set(Rule)
    assert all(f"| `{kind}` |" in PAGE for kind in DriftKind)
    whole = PAGE.partition("## The rules")[0]
    fields = manifest_schema()["$defs"]["Declared"]["properties"]
    assert [name for name in fields if f"{name}:" not in whole] == []
    options = [option.opts[0] for option in check.params if isinstance(option, click.Option)]
    assert [option for option in options if option not in PAGE] == []
