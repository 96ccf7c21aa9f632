"""Every route with every role, without a key and with a bad one.

What is expected stands here a second time, by hand: a route whose declaration changes fails until this table is changed too.
Requests are empty, so a caller that is let in gets past 401 and 403 to whatever the route says of an empty request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from app.access import Role
from app.http.routing import ThinRoute
from tests.http.conftest import Service

pytestmark = pytest.mark.anyio
P, W, V, O, A = Role.PRODUCER, Role.WORKER, Role.VIEWER, Role.OPERATOR, Role.ADMIN  # noqa: E741 - one letter each, to read the table
EVERYBODY = None

# operation -> the roles of callers that are let in
EXPECTED: dict[str, set[Role] | None] = {
    "create_api_key": {A},
    "list_api_keys": {A},
    "revoke_api_key": {A},
    "list_audit": {O, A},
    "get_health": {V, O, A},
    "get_livez": EVERYBODY,
    "get_readyz": EVERYBODY,
    "get_startupz": EVERYBODY,
    "get_metrics": EVERYBODY,
    "get_openapi": EVERYBODY,
    "get_openapi_30": EVERYBODY,
    "get_llms_txt": EVERYBODY,
    "show_docs": EVERYBODY,
    "get_docs_asset": EVERYBODY,
    "list_problems": EVERYBODY,
    "get_problem": EVERYBODY,
    # jobs and queues
    "enqueue_job": {P, A},
    "enqueue_jobs": {P, A},
    "claim_jobs": {W, A},
    "heartbeat_job": {W, A},
    "heartbeat_jobs": {W, A},
    "complete_job": {W, A},
    "fail_job": {W, A},
    "mark_job_unknown": {W, A},
    "release_job": {W, A},
    "settle_jobs": {W, A},
    "get_job": {V, O, A},
    "list_jobs": {V, O, A},
    "explain_job": {V, O, A},
    "cancel_job": {O, A},
    "retry_job": {O, A},
    "reconcile_job": {O, A},
    "change_jobs": {O, A},
    "list_queues": {V, O, A},
    "get_queue": {V, O, A},
    "put_queue": {O, A},
    "pause_queue": {O, A},
    "resume_queue": {O, A},
    "get_stats": {V, O, A},
    # contracts
    "put_contract": {O, A},
    "get_contract": {V, O, A},
    "list_contracts": {V, O, A},
    "check_contracts": {P, V, O, A},
    "get_contract_drift": {V, O, A},
    "get_contract_schema": EVERYBODY,
    # locks
    "acquire_lock": {W, A},
    "renew_lock": {W, A},
    "release_lock": {W, A},
    "verify_lock": {P, W, V, O, A},
    "break_lock": {O, A},
    "list_locks": {V, O, A},
    # idempotency
    "check_key": {P, W, A},
    "complete_key": {P, W, A},
    "fail_key": {P, W, A},
    "mark_key_unknown": {P, W, A},
    "heartbeat_key": {P, W, A},
    "reconcile_key": {W, O, A},
    "list_keys": {V, O, A},
    # cache
    "put_cache_entry": {W, O, A},
    "get_cache_entry": {W, O, A},
    "delete_cache_entry": {W, O, A},
    "clear_cache_namespace": {W, O, A},
    "remember_cache_entry": {W, O, A},
    "fill_cache_entry": {W, O, A},
    "fail_cache_fill": {W, O, A},
    "put_cache_policy": {W, O, A},
    "get_cache_policy": {W, V, O, A},
    "list_cache_policies": {W, V, O, A},
    # outbox
    "put_destination": {O, A},
    "get_destination": {V, O, A},
    "list_destinations": {V, O, A},
    "record_message": {P, A},
    "record_messages": {P, A},
    "confirm_message": {P, O, A},
    "abort_message": {P, O, A},
    "claim_messages": {W, A},
    "heartbeat_message": {W, A},
    "mark_message_sent": {W, A},
    "retry_message": {W, A},
    "reject_message": {W, A},
    "mark_message_unknown": {W, A},
    "release_message": {W, A},
    "settle_messages": {W, A},
    "claim_reconciliations": {W, A},
    "give_verdict": {W, A},
    "list_messages": {V, O, A},
    "get_message": {V, O, A},
    "reconcile_message": {O, A},
    "get_outbox_stats": {V, O, A},
    "requeue_messages": {O, A},
    "release_stale_messages": {O, A},
    "purge_messages": {O, A},
    # the tests' own
    "echo_value": {P, A},
    "echo_values": {P, A},
    "get_thing": EVERYBODY,
    "get_demo_job": EVERYBODY,
    "refuse_call": EVERYBODY,
    "fail_call": EVERYBODY,
}
BAD_KEYS = ["tnr_000000000000_" + "0" * 49, "tnr_short", "nonsense", ""]


def thin_routes(app: Any) -> Iterator[tuple[str, str, str, ThinRoute]]:
    """(name, method, path, route) of every thin route but the one that waits for its client to go."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, ThinRoute) and context.name != "wait_for_work":
            for method in route.methods or ():
                yield str(context.name), method, str(context.path), route


def allowed(answer: Any) -> bool:
    return answer.status_code not in (401, 403)


async def test_every_route_lets_in_exactly_whom_it_should(service: Service) -> None:
    clients = {role: await service.client(await service.key_of(role)) for role in Role}
    routes = list(thin_routes(service.app))
    for name, method, path, route in routes:
        assert name in EXPECTED, f"{method} {path}: say here who may call {name}"
        expected = EXPECTED[name]
        url = path.replace("{key_id}", "0" * 12)
        for one in ("{job_id}", "{message_id}"):
            url = url.replace(one, "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f")
        url = url.replace("{", "x").replace("}", "x")
        got = {role for role, client in clients.items() if allowed(await client.request(method, url))}
        assert got == (set(Role) if expected is EVERYBODY else expected), f"{method} {path}"
        declared = route.thin.roles
        assert (declared == ()) is (expected is EVERYBODY), f"{method} {path}"


async def test_no_route_but_the_open_ones_lets_in_a_caller_without_a_good_key(service: Service) -> None:
    await service.key_of(Role.ADMIN)
    for name, method, path, _ in thin_routes(service.app):
        for key in (None, *BAD_KEYS):
            answer = await (await service.client(key)).request(method, path)
            assert (answer.status_code != 401) is (EXPECTED[name] is EVERYBODY), f"{method} {path} with {key}"


async def test_the_declaration_of_roles_is_in_the_document(service: Service) -> None:
    document = service.app.openapi()
    for name, method, path, route in thin_routes(service.app):
        if not route.include_in_schema:
            continue
        operation = document["paths"][path][method.lower()]
        assert operation["operationId"] == name
        assert operation["x-roles"] == [str(role) for role in route.thin.roles]
        assert operation["security"] == ([{"bearer": []}] if route.thin.roles else [])
