"""`/llms.txt`: the whole contract in little text, made from the OpenAPI document."""

from __future__ import annotations

from typing import Any

from app.errors import CODES
from app.http.openapi import GUIDE, SUMMARY, TITLE

_SKIPPED = frozenset({"probes"})
_METHODS = ("get", "put", "post", "delete", "patch")


def reference(document: dict[str, Any]) -> str:
    """Markdown: the guide, every call with its parameters, every schema in one line for each field, every code."""
    lines = [f"# {TITLE} {document['info']['version']}", "", f"> {SUMMARY}", "", GUIDE, "", "## Calls", ""]
    for path, item in document["paths"].items():
        for method in _METHODS:
            operation = item.get(method)
            if operation is not None and not _SKIPPED.intersection(operation.get("tags", ())):
                lines.extend(_call(path, method, operation))
    lines += ["## Types", "", "`?` may be left out, `|null` may be null.", ""]
    for name, schema in document["components"]["schemas"].items():
        lines.append(f"- **{name}** {_one_line(schema.get('description', ''))} {_fields(schema)}".rstrip())
    lines += ["", "## Problem codes", ""]
    lines += [f"- `{code.name}` {code.status}: {code.title}. {code.advice}" for code in CODES]
    return "\n".join(lines) + "\n"


def _call(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    roles = " or ".join(operation.get("x-roles", ())) or "open"
    summary, description = operation["summary"], operation["description"]
    told = summary if summary == description else f"{summary}. {_one_line(description)}"
    lines = [f"### {method.upper()} {path}", f"`{operation['operationId']}` ({roles}). {told.rstrip('.')}."]
    parameters = [
        f"{one['name']}{'' if one.get('required') else '?'}: {_type(one['schema'])}"
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    ]
    if parameters:
        lines.append("query: " + ", ".join(parameters))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        lines.append("body: " + _type(body["schema"]))
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if status.startswith("2"):
            lines += [f"{status}: {_type(media['schema'])}" for media in list(content.values())[:1]]
    codes = sorted(
        {
            code
            for response in operation["responses"].values()
            for content in response.get("content", {}).values()
            for code in content.get("examples", {})
            if any(code == known.name for known in CODES)
        }
    )
    if codes:
        lines.append("problems: " + ", ".join(codes))
    return [*lines, ""]


def _fields(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    required = set(schema.get("required", ()))
    fields = [
        f"{name}{'' if name in required else '?'}: {_type(field)}"
        for name, field in schema.get("properties", {}).items()
    ]
    return "{" + ", ".join(fields) + "}" if fields else _type(schema)


def _type(schema: dict[str, Any]) -> str:
    """A schema as a few characters of type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "allOf", "oneOf"):
        if key in schema:
            return "|".join(_type(one) for one in schema[key])
    if "enum" in schema:
        return "|".join("null" if value is None else str(value) for value in schema["enum"])
    kinds = schema.get("type", "json")
    names = [kinds] if isinstance(kinds, str) else kinds
    return "|".join(_kind(name, schema) for name in names)


def _kind(name: str, schema: dict[str, Any]) -> str:
    if name == "array":
        return f"[{_type(schema.get('items', {}))}]"
    if name == "string" and schema.get("format") == "date-time":
        return "time"
    return name


def _one_line(text: str) -> str:
    return " ".join(text.split())
