"""Each of our own lints catches what it is for, lets its exceptions pass, and finds nothing in the repository."""

from __future__ import annotations

import pytest

from scripts.lints import RULES, Rule, Source
from scripts.lints.__main__ import findings

BY_NAME = {rule.name: rule for rule in RULES}

HOST = "files.python" + "hosted.org"
FOLDER = "/" + "work"

BAD = [
    ("dialect-names", "app/runtime/lanes.py", "if tx.dialect.name == 'x':\n    pass"),
    ("dialect-names", "app/runtime/lanes.py", "fast = engine.dialect.name in NAMES"),
    ("dialect-names", "app/primitives/jobs/store.py", "if kind in ('mysql', 'mariadb'):\n    pass"),
    ("dialect-names", "app/db/database.py", "if url.get_backend_name().startswith('my'):\n    pass"),
    ("dialect-names", "app/db/database.py", "match dialect.name:\n    case 'x':\n        pass"),
    ("file-length", "app/errors.py", "x = 1\n" * 321),
    ("middleware", "app/http/middleware.py", "from starlette.middleware.base import BaseHTTPMiddleware"),
    ("middleware", "app/http/middleware.py", "class M(base.BaseHTTPMiddleware):\n    pass"),
    ("middleware", "app/main.py", "@app.middleware('http')\nasync def add(request, call_next):\n    pass"),
    ("places", "requirements.lock", f"--index-url https://{HOST}/simple"),
    ("places", "requirements.lock", "--find-links wheels"),
    ("places", "requirements.lock", "-i somewhere"),
    ("places", "requirements.lock", "thing @ file:///thing.whl"),
    ("places", "Makefile", f"cd {FOLDER}/main"),
    ("places", "docs/a.md", f"see `{FOLDER}`"),
    ("places", "Makefile", "cat ../" + "shared/design.md"),
    ("sleeping-tests", "tests/test_a.py", "import time\ntime.sleep(1)"),
    ("sleeping-tests", "tests/test_a.py", "async def test():\n    await asyncio.sleep(0.1)"),
    ("sleeping-tests", "tests/test_a.py", "from time import sleep"),
    ("sql-text", "app/primitives/jobs/ops.py", "def claim():\n    import sqlalchemy.sql"),
    ("sql-text", "app/primitives/jobs/model.py", "from sqlalchemy import select"),
    ("sql-text", "app/cli/queue.py", "q = 'SELECT id FROM jobs WHERE x'"),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept:\n    log()"),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept Exception:\n    pass"),
    ("swallowed-errors", "tests/test_a.py", "try:\n    f()\nexcept (ValueError, BaseException):\n    ..."),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept:  # allow swallowed-errors:\n    pass"),
    ("swallowed-errors", "app/clock.py", "with contextlib.suppress(Exception):\n    f()"),
]

GOOD = [
    ("dialect-names", "app/db/dialects/mysql.py", "if dialect.name == 'mysql':\n    pass"),
    ("dialect-names", "app/runtime/lanes.py", "if tx.dialect.single_writer:\n    pass"),
    ("file-length", "app/errors.py", "x = 1\n" * 320),
    ("file-length", "tests/test_a.py", "x = 1\n" * 900),
    ("middleware", "app/main.py", "app.add_middleware(RequestId)"),
    ("places", ".ci/run", "tool=../" + "shared/tools/mysql-server"),
    ("places", "requirements.lock", "click==8.5.1 \\\n    --hash=sha256:aa\n    # via tenure (pyproject.toml)"),
    ("places", "app/primitives/jobs/routes.py", "router.get('/v1/" + "work/items')\nrouter.get('/workers')"),
    ("sleeping-tests", "tests/test_a.py", "async def test():\n    await asyncio.sleep(0)"),
    ("sleeping-tests", "app/db/database.py", "import time\ntime.sleep(1)"),
    ("sql-text", "app/primitives/jobs/store.py", "from sqlalchemy import select"),
    ("sql-text", "app/primitives/jobs/ops.py", "'''Select the jobs from this queue and update them.'''"),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept:  # allow swallowed-errors: it ends here\n    pass"),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept KeyError:\n    pass"),
    ("swallowed-errors", "app/clock.py", "try:\n    f()\nexcept Exception:\n    log.exception('it failed')"),
]


@pytest.mark.parametrize(("name", "path", "text"), BAD)
def test_a_rule_catches_what_it_is_for(name: str, path: str, text: str) -> None:
    assert BY_NAME[name].problems(Source(path, text))


@pytest.mark.parametrize(("name", "path", "text"), GOOD)
def test_a_rule_lets_its_exceptions_pass(name: str, path: str, text: str) -> None:
    assert BY_NAME[name].problems(Source(path, text)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_shown_to_catch_something(rule: Rule) -> None:
    assert rule.name in {name for name, _, _ in BAD}


def test_the_repository_breaks_no_rule() -> None:
    assert list(findings()) == []
