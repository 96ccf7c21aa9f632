"""Programs beside the database servers that some tests need. Where one is missing its tests are skipped, and the summary says
so; where TENURE_TEST_TOOLS=required, as in CI, the run fails.
"""

from __future__ import annotations

import os

import pytest


def needs(found: object, missing: str) -> pytest.MarkDecorator:
    """Mark tests that need what was `found`, or was not (None); `missing` says what to install."""
    if found is None and os.environ.get("TENURE_TEST_TOOLS") == "required":
        raise RuntimeError(f"TENURE_TEST_TOOLS requires it: {missing}")
    return pytest.mark.skipif(found is None, reason=missing)
