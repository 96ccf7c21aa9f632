"""The bare framework: what FastAPI and uvicorn do for a small JSON answer, with nothing behind it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

app = FastAPI()


@app.get("/echo/{namespace}/{key}")
async def echo(namespace: str, key: str) -> dict[str, Any]:
    """About as long as a value of the cache with what stands beside it."""
    return {"namespace": namespace, "key": key, "value": {"plan": "pro", "seats": 12}, "state": "fresh", "age": 12.5}
