"""Routes of destinations: set, read, list."""

from __future__ import annotations

from typing import Any

from app.access import Role
from app.clock import micros
from app.errors import NOT_FOUND, STATE_CONFLICT, VALIDATION_FAILED, FieldError, Refusal
from app.http.call import Answer, Call
from app.http.paging import PageParams, page, place
from app.http.routing import thin_router
from app.ids import new_id
from app.jsontext import Name
from app.outgoing.urls import problem_with
from app.primitives.outbox.ops.destinations import Get, Listing, Put
from app.primitives.outbox.routes.commands import caller_of
from app.primitives.outbox.schemas.destinations import (
    DestinationListRead,
    DestinationPutRead,
    DestinationRead,
    PutDestination,
    destination_view,
)

router = thin_router("/v1/outbox/destinations", tags=["outbox"])

NAME = {"name": Name}


@router.put(
    "/{name}",
    name="put_destination",
    requires=Role.OPERATOR,
    answers=DestinationPutRead,
    path=NAME,
    refuses=(STATE_CONFLICT,),
    response_description="The destination: changed, or as it was (`replayed: true`).",
    also={201: "The destination, which is new."},
)
async def put_destination(call: Call[PutDestination]) -> Answer:
    """Set a destination: who sends, and what may be done with messages of which it is not known whether they were sent.

    What is left out is unset, but for a signing secret, which stays until another is sent. In force at once for every decision
    that begins later; messages that are on their way keep their reservations. May be repeated.
    """
    name, delivery = call.path["name"], call.body.delivery
    call.principal.require_names([name])
    _check_url(call, "#/delivery/url", delivery.url)
    _check_url(call, "#/reconcile/url", call.body.reconcile.url)
    command = Put(
        call.body.destination(name),
        caller_of(call),
        new_id(),
        headers={key.lower(): value for key, value in (delivery.headers or {}).items()},
        signing_secret=delivery.signing_secret,
        overlap=micros(delivery.signing_secret_overlap_seconds),
    )
    stored = await call.runtime.lane("outbox.put_destination").submit(command)
    return Answer({**destination_view(stored), "replayed": stored.replayed}, status=201 if stored.created else 200)


def _check_url(call: Call[Any], pointer: str, url: str | None) -> None:
    """Names are judged when they are called; an address in the URL is judged here."""
    fault = None if url is None else problem_with(url, call.runtime.state("outgoing").targets)
    if fault is not None:
        raise Refusal(VALIDATION_FAILED, "The request is not valid.", errors=(FieldError(pointer, fault),))


@router.get(
    "/{name}",
    name="get_destination",
    requires=Role.VIEWER,
    answers=DestinationRead,
    path=NAME,
    refuses=(NOT_FOUND,),
    response_description="The destination.",
)
async def get_destination(call: Call) -> Answer:
    """Get one destination as it is set."""
    command = Get(call.path["name"], call.principal)
    return Answer(destination_view(await call.runtime.lane("outbox.destination").submit(command)))


@router.get(
    "",
    name="list_destinations",
    requires=Role.VIEWER,
    answers=DestinationListRead,
    response_description="A page of destinations.",
)
async def list_destinations(call: Call[None, PageParams]) -> Answer:
    """List destinations by name. A key that is limited to names sees only those within them."""
    after = place(call, "destinations", (str,))
    listing = Listing(call.principal, call.query.limit, None if after is None else after[0])
    rows = await call.runtime.lane("outbox.destinations").submit(listing)
    return Answer(page(call, "destinations", rows, destination_view, lambda one: (one.destination.name,)))
