"""The JSON Schema of a manifest, for editors. Made from the model that judges, so the two cannot differ."""

from __future__ import annotations

from typing import Any

from app.primitives.contracts.model.manifest import Manifest

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema() -> dict[str, Any]:
    schema = Manifest.model_json_schema()
    schema["$defs"]["Declared"]["properties"]["payload_schema"] = {
        "type": ["object", "boolean", "null"],
        "description": "JSON Schema (2020-12) of the payload, enforced at enqueue.",
    }
    for name in ("Declared", "Excluded"):
        schema["$defs"][name]["properties"].pop("file")  # the command itself says in which file it found them
    return {"$schema": DIALECT, "title": "Tenure contracts", **{k: v for k, v in schema.items() if k != "title"}}
