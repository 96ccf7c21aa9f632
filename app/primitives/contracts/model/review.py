"""A review: a whole manifest against the rules and against its ledger of known debt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.primitives.contracts.model.contract import Rule
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.model.judging import Exempted, Finding, judge
from app.primitives.contracts.model.manifest import Excluded, Ledger, Manifest
from app.primitives.contracts.model.reasons import why_not


@dataclass(frozen=True, slots=True)
class Review:
    """`new` violations stand in no ledger, `known` ones do; `paid` are ids of the ledger that are violated no more."""

    new: tuple[Finding, ...]
    known: tuple[Finding, ...]
    paid: tuple[str, ...]
    exempted: tuple[Exempted, ...]
    excluded: tuple[Excluded, ...]
    contracts: int

    def ok(self, *, strict: bool) -> bool:
        """Strictly, a paid debt must be struck off the ledger as well."""
        return not self.new and not (strict and self.paid)


def review(
    manifest: Manifest,
    ledger: Ledger,
    defaults: Defaults,
    now: int,
    *,
    in_scope: Callable[[str], bool] = lambda _file: True,
) -> Review:
    """Everything in the order of files, types, versions and rules. `in_scope(file)`: whether this review looked there, so
    that it can tell whether a debt was paid.
    """
    violations: list[Finding] = list(_poor_exclusions(manifest.excluded))
    exempted: list[Exempted] = []
    for one in manifest.contracts:
        judgement = judge(one, one.type, one.schema_version, defaults, now, file=one.place)
        violations += judgement.violations
        exempted += judgement.exempted
    owed = {debt.id for debt in ledger.debt}
    found = {finding.id for finding in violations}
    violations.sort(key=_order)
    return Review(
        new=tuple(one for one in violations if one.id not in owed),
        known=tuple(one for one in violations if one.id in owed),
        paid=tuple(sorted(id_ for id_ in owed - found if in_scope(id_.rsplit("::", 2)[0]))),
        exempted=tuple(sorted(exempted, key=lambda one: _order(one.finding))),
        excluded=tuple(one for one in manifest.excluded if why_not(one.reason) is None),
        contracts=len(manifest.contracts),
    )


def _poor_exclusions(excluded: list[Excluded]) -> Iterator[Finding]:
    """A type is excluded by a reason. Without one it is held to the standard, and it has declared nothing."""
    for index, one in enumerate(excluded):
        if (fault := why_not(one.reason)) is not None:
            detail = f"It is excluded from the standard, and the reason {fault}."
            yield Finding(Rule.QUEUE001, one.type, None, detail, f"/excluded/{index}/reason", one.place)


def _order(finding: Finding) -> tuple[str, str, int, str]:
    return finding.file, finding.type, finding.schema_version or 0, finding.rule
