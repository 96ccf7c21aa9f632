"""Prints docs/settings.md, made from the declarations in app/settings.py (`make docs/settings`)."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.settings import Settings

INTRODUCTION = """\
# Settings

Made by `make docs/settings` from `app/settings.py`; do not edit.

Every setting is an environment variable, read once at start. A wrong one stops the start with one clear line and exit code 2.
For each of them `<NAME>_FILE` may name a file that holds the value, as container platforms hand over secrets; set one or the
other, not both. Lists are JSON.

| Variable | Default | Values | Meaning |
| --- | --- | --- | --- |
"""

CLIENT = """
## For commands that speak to a running service

| Variable | Default | Meaning |
| --- | --- | --- |
| `TENURE_URL` | `http://127.0.0.1:8080` | Base URL of the service; without it `TENURE_HOST` and `TENURE_PORT` count. |
| `TENURE_API_KEY` | | The API key to send. |
| `TENURE_API_KEY_FILE` | | A file that holds it; set one or the other. |
| `NO_COLOR` | | Set to anything: no colours. |
"""

_BOUNDS = (("ge", "at least {}"), ("gt", "more than {}"), ("le", "at most {}"), ("lt", "less than {}"))


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_row(name, field) for name, field in Settings.model_fields.items()) + CLIENT


def _row(name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `TENURE_{name.upper()}` | {_default(field.default)} | {_values(field)} | {meaning} |\n"


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, tuple):
        value = json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value in ("", None) else f"`{value}`"


def _values(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    kind = {int: "integer", float: "number", bool: "`true`, `false`"}.get(field.annotation or str, "")  # type: ignore[arg-type]
    bounds = [
        text.format(f"{getattr(bound, attribute):g}" if getattr(bound, attribute) < 1e6 else getattr(bound, attribute))
        for attribute, text in _BOUNDS
        for bound in field.metadata
        if getattr(bound, attribute, None) is not None
    ]
    return ", ".join(part for part in (kind, *bounds) if part)


if __name__ == "__main__":
    print(page(), end="")
