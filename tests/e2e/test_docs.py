"""The interactive documentation in a real browser: all of it is shown, nothing comes from elsewhere, and it can be used."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e.browser import MISSING, PROGRAM, Page
from tests.e2e.process import ServiceProcess
from tests.tools import needs

pytestmark = [pytest.mark.engines("sqlite"), needs(PROGRAM, MISSING)]

SHOWN = """
[...document.querySelectorAll('.opblock')].map(block => [
  block.querySelector('.opblock-summary-method').textContent.toLowerCase(),
  block.querySelector('.opblock-summary-path').dataset.path,
  block.querySelector('.opblock-summary-description').textContent])
"""
OUTSIDE = "https://elsewhere.invalid/"


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as one:
        yield one


def test_every_operation_is_shown_and_nothing_is_loaded_from_elsewhere(service: ServiceProcess, page: Page) -> None:
    declared = [
        [method, path, operation["summary"]]
        for path, item in service.get("/openapi.json")["paths"].items()
        for method, operation in item.items()
        if method in ("get", "put", "post", "delete", "patch")
    ]
    page.open(f"{service.url}/docs")
    page.until(f"document.querySelectorAll('.opblock').length >= {len(declared)}")
    assert sorted(page.evaluate(SHOWN)) == sorted(declared)
    assert page.complaints == []
    origins = {urlsplit(url)[:2] for url in page.requests if not url.startswith("data:")}
    assert origins == {urlsplit(service.url)[:2]}
    assert {f"{service.url}/docs", f"{service.url}/openapi.json"} <= set(page.requests)


def test_an_operation_can_be_tried_from_the_page(service: ServiceProcess, page: Page) -> None:
    page.open(f"{service.url}/docs")
    block = """[...document.querySelectorAll('.opblock')].find(one =>
        one.querySelector('.opblock-summary-path').dataset.path === '/livez')"""
    for step in (".opblock-summary-control", ".execute"):
        page.until(f"{block}?.querySelector('{step}') && ({block}.querySelector('{step}').click(), true)")
    page.until(
        f"{block}.querySelector('.live-responses-table tbody .response-col_status')?.textContent.startsWith('200')"
    )
    assert page.requests[-1] == f"{service.url}/livez"
    assert page.complaints == []


def test_the_page_is_kept_from_asking_elsewhere(service: ServiceProcess, page: Page) -> None:
    """Also shows that the tests above would see it."""
    page.open(f"{service.url}/docs")
    page.until("document.querySelectorAll('.opblock').length > 0")
    assert page.evaluate(f"fetch('{OUTSIDE}').then(() => 'answered', () => 'refused')") == "refused"
    assert any("Content Security Policy" in one and OUTSIDE in one for one in page.complaints), page.complaints
