"""Judging: one contract against all rules, with its exemptions, as of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from app.clock import MAX_MOMENT, MICROS
from app.primitives.contracts.model.contract import Contract, Exemption, Rule
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.model.reasons import why_not
from app.primitives.contracts.model.rules import LAWS, case_of

_EPOCH_DAY = date(1970, 1, 1).toordinal()
ANY_VERSION = "*"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that one contract breaks. `schema_version` is None where the type has no contract at all.

    `pointer` is a JSON Pointer into the contract, to the first thing that breaks the rule.
    """

    rule: Rule
    type: str
    schema_version: int | None
    detail: str
    pointer: str
    file: str = ""

    @property
    def mend(self) -> str:
        return LAWS[self.rule].mend

    @property
    def page(self) -> str:
        return f"/problems/{self.rule}"

    @property
    def id(self) -> str:
        version = ANY_VERSION if self.schema_version is None else self.schema_version
        place = f"{self.file}::" if self.file else ""
        return f"{place}{self.type}@{version}::{self.rule}"


@dataclass(frozen=True, slots=True)
class Exempted:
    """A finding that a live exemption covers. `until`: the moment from which it does not, in microseconds."""

    finding: Finding
    reason: str
    expires_on: date | None
    until: int | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`valid_until`: when the first exemption ends that it rests on; `lapses`: the rules that are violated from then on."""

    violations: tuple[Finding, ...] = ()
    exempted: tuple[Exempted, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.violations

    @property
    def valid_until(self) -> int | None:
        return min((one.until for one in self.exempted if one.until is not None), default=None)

    @property
    def lapses(self) -> tuple[str, ...]:
        end = self.valid_until
        if end is None:
            return ()
        ended = {str(one.finding.rule) for one in self.exempted if one.until == end}
        return tuple(sorted(ended | {str(one.rule) for one in self.violations}))


def end_of(day: date) -> int:
    """The first microsecond after this day, in UTC."""
    return min((day.toordinal() - _EPOCH_DAY + 1) * 86_400 * MICROS, MAX_MOMENT)


def judge(contract: Contract, type_: str, version: int, defaults: Defaults, now: int, *, file: str = "") -> Judgement:
    """One contract as of `now` (microseconds). A rule that several things break is one finding that tells of all."""
    case = case_of(type_, contract, defaults)
    exemptions = {one.rule: one for one in contract.exemptions}
    violations: list[Finding] = []
    exempted: list[Exempted] = []
    for rule, law in LAWS.items():
        faults = list(law.judge(case))
        if not faults:
            continue
        told = "; ".join(fault.detail for fault in faults)
        exemption = exemptions.get(rule)
        gap = None if exemption is None else _gap(exemption, now)
        detail = told if gap is None else f"{told} ({gap})"
        finding = Finding(rule, type_, version, f"{detail[0].upper()}{detail[1:]}.", faults[0].pointer, file)
        if exemption is None or gap is not None:
            violations.append(finding)
        else:
            day = exemption.expires_on
            exempted.append(Exempted(finding, exemption.reason, day, None if day is None else end_of(day)))
    return Judgement(tuple(violations), tuple(exempted))


def _gap(exemption: Exemption, now: int) -> str | None:
    """Why the exemption does not cover anything now; None if it does."""
    if why_not(exemption.reason) is not None:
        return "the exemption gives no real reason"
    if exemption.expires_on is not None and now >= end_of(exemption.expires_on):
        return f"the exemption expired on {exemption.expires_on.isoformat()}"
    return None
