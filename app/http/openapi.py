"""The OpenAPI documents: 3.1 at `/openapi.json`, and the same as 3.0.3 for generators that know no 3.1.

FastAPI collects paths and schemas from the routes' declarations; here the document is finished: servers, contact, security,
tags, the one `Problem` component, and nullable fields in the form that generators understand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.http.problem import Problem, ProblemField

TITLE = "Tenure"
SUMMARY = "Durable jobs over HTTP, in the relational database that you already run."
GUIDE = """
Tenure coordinates work through the relational database that you already run.

**Keys.** Send `Authorization: Bearer <api key>`. Roles: `producer`, `worker`, `viewer`, `operator` (includes viewer),
`admin` (includes all). On a fresh installation, calls from the same machine need no key until the first one is made.

**Reservations.** Whatever can be held is held through `{token, fence, expires_at}`. The token is your authority: renew and
settle with it, and keep it secret. The fence only grows: pass it on to what you write to, so that it can refuse older ones.
When a call answers 409 `reservation_lost`, stop the work.

**Repeat safely.** A 2xx is on disk. After a lost answer repeat the same request, with the same `idempotency_key`, `claim_id`
or token: you get the same answer, with `replayed: true`. With other content it is 409.

**Errors** are `application/problem+json`. Switch on `code`, never on `detail`; `/problems/{code}` explains each.
`retryable` says whether the very same request may succeed later; wait for `Retry-After`.

**Values.** Times are RFC 3339 in UTC with microseconds; durations are seconds in fields that end in `_seconds`. Payloads and
results are any JSON, given back byte for byte. Unknown fields in requests are refused. Expect new fields in answers.

**Lists** take `limit` and `cursor`, and answer `items` and `next_cursor`, newest first.
""".strip()

TAGS = {
    "jobs": "Enqueue work, claim it, settle it, look into it.",
    "queues": "Limits, pauses and figures of queues.",
    "outbox": "Messages recorded with their cause and delivered with their outcome known.",
    "locks": "Leases on names, served in order, with fences.",
    "idempotency": "Whether a deed was done already, and what came of it.",
    "cache": "Shared values with exactly one filler.",
    "contracts": "What job types promise, and whether they keep it.",
    "schedules": "Work by the clock; every slot gets its fate.",
    "gates": "Conditions that hold back work.",
    "operations": "Keys, audit, metrics, documentation.",
    "probes": "Whether a process runs, serves and is healthy.",
}
_METHODS = ("get", "put", "post", "delete", "patch", "head")


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `app`."""
    runtime = app.state.runtime
    found = get_openapi(
        title=TITLE,
        version=app.version,
        summary=SUMMARY,
        description=GUIDE,
        routes=app.routes,
        servers=[{"url": runtime.settings.public_url or "/", "description": "This installation."}],
        contact={"name": "The operators of this installation"},
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    components = found.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for model in (Problem, ProblemField):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "tnr_<id>_<secret>",
            "description": "An API key.",
        }
    }
    found["security"] = [{"bearer": []}]
    used = {
        tag for item in found["paths"].values() for method in _METHODS for tag in item.get(method, {}).get("tags", ())
    }
    found["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    _each(found, _tidy)
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    return found


def document_30(newest: dict[str, Any]) -> dict[str, Any]:
    """The 3.1 document as OpenAPI 3.0.3: `nullable`, `allOf` around references with company, single examples."""
    old = copy.deepcopy(newest)
    old["openapi"] = "3.0.3"
    old["info"].pop("summary", None)
    old["info"]["license"] = {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"}
    _each(old, _downgrade)
    return old


def _each(node: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Call `change` for every object of the document, inner ones first; examples are left alone."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in ("example", "examples", "default", "enum", "const"):
                _each(value, change)
        change(node)
    elif isinstance(node, list):
        for value in node:
            _each(value, change)


def _tidy(node: dict[str, Any]) -> None:
    """`anyOf [X, null]` becomes a list of types; titles that repeat the field's name go."""
    if isinstance(node.get("title"), str) and ("type" in node or "anyOf" in node or "$ref" in node or len(node) <= 2):
        node.pop("title", None)
    choices = node.get("anyOf")
    if not isinstance(choices, list):
        return
    real = [choice for choice in choices if choice != {"type": "null"}]
    if len(real) == len(choices):
        return
    if any(not _typed(choice) and "$ref" not in choice for choice in real):  # any JSON: it takes null by itself
        node.pop("anyOf")
        for choice in real:
            node.update({key: value for key, value in choice.items() if key not in node})
    elif all(_typed(choice) for choice in real) and (len(real) == 1 or all(set(choice) == {"type"} for choice in real)):
        node.pop("anyOf")
        node.update({key: value for key, value in real[0].items() if key not in node or key == "type"})
        node["type"] = [*(choice["type"] for choice in real), "null"]
        if "enum" in node:
            node["enum"] = [*node["enum"], None]


def _typed(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("type"), str)


def _downgrade(node: dict[str, Any]) -> None:
    kinds = node.get("type")
    if isinstance(kinds, list):
        real = [kind for kind in kinds if kind != "null"]
        if "null" in kinds:
            node["nullable"] = True
        node.pop("type")
        if len(real) == 1:
            node["type"] = real[0]
        else:
            node["anyOf"] = [{"type": kind} for kind in real]
    choices = node.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        real_choices = [choice for choice in choices if choice != {"type": "null"}]
        node.pop("anyOf")
        node["nullable"] = True
        node["allOf" if len(real_choices) == 1 else "anyOf"] = real_choices
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for limit in ("Minimum", "Maximum"):
        exclusive = f"exclusive{limit}"
        if isinstance(node.get(exclusive), int | float) and not isinstance(node.get(exclusive), bool):
            node[limit.lower()] = node[exclusive]
            node[exclusive] = True
    if isinstance(node.get("examples"), list):
        examples = node.pop("examples")
        if examples:
            node["example"] = examples[0]
    if "$ref" in node and len(node) > 1:
        node["allOf"] = [{"$ref": node.pop("$ref")}, *node.pop("allOf", [])]
