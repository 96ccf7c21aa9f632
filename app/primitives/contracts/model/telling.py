"""Findings and reviews as plain values: the same over HTTP and on the command line."""

from __future__ import annotations

from typing import Any

from app.primitives.contracts.model.judging import Exempted, Finding
from app.primitives.contracts.model.review import Review


def finding_view(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "rule": finding.rule,
        "file": finding.file or None,
        "type": finding.type,
        "schema_version": finding.schema_version,
        "detail": finding.detail,
        "mend": finding.mend,
        "pointer": finding.pointer,
        "page": finding.page,
    }


def exempted_view(one: Exempted) -> dict[str, Any]:
    day = one.expires_on
    return {**finding_view(one.finding), "reason": one.reason, "expires_on": None if day is None else day.isoformat()}


def check_view(found: Review, *, strict: bool) -> dict[str, Any]:
    return {
        "ok": found.ok(strict=strict),
        "new": [finding_view(one) for one in found.new],
        "known": [finding_view(one) for one in found.known],
        "paid": list(found.paid),
        "exempted": [exempted_view(one) for one in found.exempted],
        "excluded": [{"type": one.type, "reason": one.reason, "file": one.place} for one in found.excluded],
        "counts": {
            "contracts": found.contracts,
            "new": len(found.new),
            "known": len(found.known),
            "paid": len(found.paid),
            "exempted": len(found.exempted),
            "excluded": len(found.excluded),
        },
    }
