"""Routes of the tests' own: thin ones for every shape, and plain ones as a dashboard would have."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client.core import GaugeMetricFamily
from pydantic import BaseModel, Field

from app.access import Role
from app.errors import LOCKED, Refusal
from app.http.routing import OPEN, Answer, Call, thin_router
from app.jsontext import Body, IdText, Key, Name, OpaqueJson, Params, Read
from app.runtime.checks import Check


class EchoBody(Body):
    queue: Name
    payload: OpaqueJson
    result: OpaqueJson | None = None
    priority: int = 0


class EchoMany(Body):
    jobs: Annotated[list[EchoBody], Field(min_length=1, max_length=10)]


class EchoRead(Read):
    queue: str
    payload: OpaqueJson


class ThingParams(Params):
    limit: int = 5


class ThingRead(Read):
    name: str
    limit: int


router = thin_router("/v1/demo", tags=["jobs"])
plain = APIRouter(prefix="/plain", include_in_schema=False)


@router.post("/echo", name="echo_value", status_code=201, requires=Role.PRODUCER, answers=EchoRead, refuses=(LOCKED,))
async def echo_value(call: Call[EchoBody]) -> Answer:
    """Echo a value."""
    call.principal.require_names([call.body.queue])
    return Answer(
        {
            "queue": call.body.queue,
            "payload": msgspec.Raw(call.body.payload),
            "size": call.body_size,
            "trace": call.traceparent,
            "result": None if call.body.result is None else msgspec.Raw(call.body.result),
        }
    )


@router.post("/many", name="echo_values", requires=Role.PRODUCER, answers=EchoRead)
async def echo_values(call: Call[EchoMany]) -> Answer:
    """Echo values."""
    return Answer({"items": [msgspec.Raw(job.payload) for job in call.body.jobs]})


@router.get("/things/{name}", name="get_thing", requires=OPEN, answers=ThingRead, path={"name": Key})
async def get_thing(call: Call[None, ThingParams]) -> Answer:
    """Get a thing."""
    return Answer({"name": call.path["name"], "limit": call.query.limit}, headers={"X-Thing": "yes"})


@router.get("/jobs/{job_id}", name="get_demo_job", requires=OPEN, answers=ThingRead, path={"job_id": IdText})
async def get_demo_job(call: Call) -> Answer:
    """Get a job."""
    return Answer({"id": call.path["job_id"]})


@router.post("/refuse", name="refuse_call", requires=OPEN, answers=ThingRead)
async def refuse_call(_call: Call) -> Answer:
    """Refuse."""
    raise Refusal(LOCKED, "Somebody holds it.", {"owner": "x"}, retry_after_seconds=3)


@router.post("/fail", name="fail_call", requires=OPEN, answers=ThingRead)
async def fail_call(_call: Call) -> Answer:
    """Fail."""
    raise RuntimeError("a secret in an exception: hunter2")


@router.post("/wait", name="wait_for_work", requires=OPEN, answers=ThingRead)
async def wait_for_work(call: Call[EchoBody]) -> Answer:
    """Wait until the client hangs up."""
    seen: asyncio.Queue[str] = call.scope["app"].state.seen
    seen.put_nowait("waiting")
    await call.gone.wait()
    seen.put_nowait("gone" if call.gone else "there")
    return Answer({}, quiet=True)


@plain.get("/page")
async def page() -> PlainTextResponse:
    return PlainTextResponse("page", headers={"content-security-policy": "default-src 'self'"})


@plain.post("/body")
async def body(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@plain.post("/refuse")
async def refuse() -> None:
    raise Refusal(LOCKED, "Somebody holds it.")


@plain.post("/fail")
async def fail() -> None:
    raise RuntimeError("a secret in an exception: hunter2")


class Form(BaseModel):
    count: int


@plain.post("/form")
async def form(form: Form) -> dict[str, int]:
    return {"count": form.count}


def checks(_runtime: Any) -> list[Check]:
    return [Check("demo.depth", "warn", 7, "jobs", "deep")]


def collect(_runtime: Any) -> list[GaugeMetricFamily]:
    return [GaugeMetricFamily("tenure_demo_depth", "Depth.", value=7)]
