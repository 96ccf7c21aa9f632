"""Roles, name patterns, keys in requests, and the open service on loopback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access import ANONYMOUS, INCLUDES, Principal, Role
from app.clock import MICROS
from app.errors import Refusal, StartupProblem
from app.http.auth import LATE_AFTER_SECONDS, STALE_AFTER_SECONDS, Directory, Entry, is_loopback, refuse_open_bind
from app.primitives.audit.model import new_id
from app.primitives.keys.model import ALPHABET, Create, Revoke, check, digest, mint
from app.settings import Settings
from tests.http.conftest import Service
from tests.http.test_requests import GOOD, is_problem

HIERARCHY = {
    Role.PRODUCER: {Role.PRODUCER},
    Role.WORKER: {Role.WORKER},
    Role.VIEWER: {Role.VIEWER},
    Role.OPERATOR: {Role.OPERATOR, Role.VIEWER},
    Role.ADMIN: set(Role),
}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("wanted", Role)
def test_a_role_includes_what_the_contract_says(role: Role, wanted: Role) -> None:
    assert Principal("k", "n", frozenset({role})).may(wanted) is (wanted in HIERARCHY[role])
    assert INCLUDES[role] == HIERARCHY[role]


@pytest.mark.parametrize(("patterns", "name", "allowed"), [
    ((), "anything", True), (("billing.*",), "billing.invoices", True), (("billing.*",), "billing", False),
    (("billing.*",), "Billing.x", False), (("billing.*",), "xbilling.x", False), (("*",), "x", True), (("a", "b*"), "bc", True),
    (("a.c",), "abc", False), (("*.eu-*",), "q.eu-1", True), (("a**b",), "ab", True), (("billing.*",), "billing.\n", True),
])  # fmt: skip
def test_only_the_star_is_special_in_a_pattern(patterns: tuple[str, ...], name: str, allowed: bool) -> None:
    principal = Principal("k", "n", frozenset({Role.WORKER}), patterns)
    assert principal.allows(name) is allowed


@given(st.text("ab.-*", max_size=12), st.text("ab.-", max_size=30))
def test_a_pattern_matches_as_a_slow_matcher_does(pattern: str, name: str) -> None:
    def slow(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return slow(pattern[1:], name) or (bool(name) and slow(pattern, name[1:]))
        return bool(name) and name[0] == pattern[0] and slow(pattern[1:], name[1:])

    if pattern:
        assert Principal("k", "n", frozenset({Role.WORKER}), (pattern,)).allows(name) is slow(pattern, name)


def test_a_key_has_the_announced_form_and_a_check() -> None:
    new = mint()
    prefix, key_id, secret = new.text.split("_")
    assert (prefix, key_id, len(key_id), len(secret)) == ("tnr", new.id, 12, 49)
    assert set(key_id + secret) <= set(ALPHABET)
    assert secret[43:] == check(key_id, secret[:43])
    assert new.digest == digest(new.text)
    assert new.text not in repr(new)


@pytest.mark.parametrize(("host", "local"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True),
    ("0.0.0.0", False),
    ("10.0.0.1", False), ("::", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("", False),
])  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    settings = Settings(host=host)
    refuse_open_bind(settings, has_keys=True)
    if local:
        refuse_open_bind(settings, has_keys=False)
    else:
        with pytest.raises(StartupProblem, match="API key"):
            refuse_open_bind(settings, has_keys=False)


def entry(key: str, **changes: Any) -> Entry:
    values = {"expires_at": None, "revoked": False, **changes}
    return Entry(Principal(key.split("_")[1], "n", frozenset({Role.WORKER})), digest(key), **values)


def test_a_directory_knows_which_keys_are_in_force() -> None:
    good, revoked, expired, stranger = (mint() for _ in range(4))
    directory = Directory()
    directory.replace([entry(good.text), entry(revoked.text, revoked=True), entry(expired.text, expires_at=10)])
    assert directory.find(good.text, good.id, 10) is not None
    assert directory.find(expired.text, expired.id, 9) is not None
    assert directory.find(expired.text, expired.id, 10) is None
    assert directory.find(revoked.text, revoked.id, 10) is None
    assert directory.find(stranger.text, stranger.id, 10) is None
    assert directory.find(f"tnr_{good.id}_{stranger.text.split('_')[2]}", good.id, 10) is None
    assert directory.open is False


def test_a_directory_reports_each_use_once_a_minute() -> None:
    key = mint()
    directory = Directory()
    directory.replace([entry(key.text)])
    minute = 60 * MICROS
    directory.find(key.text, key.id, 1)
    assert directory.take_used(minute) == {key.id: 1}
    directory.find(key.text, key.id, minute)
    assert directory.take_used(minute) == {}
    directory.find(key.text, key.id, minute + 1)
    assert directory.take_used(minute) == {key.id: minute + 1}


def test_a_directory_that_was_not_renewed_for_long_refuses_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    with pytest.raises(Refusal, match="database_unavailable"):
        directory.require_fresh()
    now = 0
    monkeypatch.setattr("app.http.auth.steady_micros", lambda: now)
    directory.replace([])
    now = STALE_AFTER_SECONDS * MICROS
    directory.require_fresh()
    now += 1
    with pytest.raises(Refusal, match="database_unavailable"):
        directory.require_fresh()


@pytest.mark.anyio
async def test_an_unknown_key_makes_the_directory_look_again_at_most_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, looks = Directory(), []
    now = 10 * MICROS
    monkeypatch.setattr("app.http.auth.steady_micros", lambda: now)

    async def refresh() -> None:
        looks.append(now)

    directory.refresh = refresh
    for _ in range(100):
        now += MICROS // 50
        await directory.look_again("nobody")
    assert len(looks) <= 5


@pytest.mark.anyio
async def test_without_any_key_a_local_caller_may_do_everything(service: Service) -> None:
    for base in ("http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080"):
        assert (await (await service.client(base=base)).get("/v1/api-keys")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(("peer", "base", "headers"), [
    ("10.0.0.1", "http://localhost", {}), ("127.0.0.1", "http://evil.example", {}),
    ("127.0.0.1", "http://127.0.0.1.evil.example", {}),
    ("127.0.0.1", "http://localhost", {"X-Forwarded-For": "1.2.3.4"}),
    ("127.0.0.1", "http://localhost", {"Forwarded": "for=1.2.3.4"}),
    ("127.0.0.1", "http://localhost", {"Via": "1.1 proxy"}),
    ("127.0.0.1", "http://localhost", {"Sec-Fetch-Site": "cross-site"}),
    ("127.0.0.1", "http://localhost", {"Authorization": "Bearer tnr_000000000000_" + "0" * 49}),
    ("127.0.0.1", "http://localhost", {"Authorization": "Basic eDp5"}),
    ("127.0.0.1", "http://localhost", {"Authorization": ""}),
])  # fmt: skip
async def test_without_any_key_nobody_else_gets_in(
    service: Service, peer: str, base: str, headers: dict[str, str]
) -> None:
    client = await service.client(peer=peer, base=base, **headers)
    answer = await client.get("/v1/api-keys")
    is_problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.anyio
async def test_once_a_key_was_made_nobody_gets_in_without_one_even_after_it_is_revoked(service: Service) -> None:
    key = await service.key_of(Role.ADMIN)
    is_problem(await (await service.client()).get("/v1/api-keys"), 401, "unauthenticated")
    admin = await service.client(key)
    assert (await admin.delete(f"/v1/api-keys/{key.split('_')[1]}")).status_code == 200
    is_problem(await admin.get("/v1/api-keys"), 401, "unauthenticated")
    is_problem(await (await service.client()).get("/v1/api-keys"), 401, "unauthenticated")


@pytest.mark.anyio
async def test_a_key_made_by_another_replica_is_found_at_its_first_use(
    service: Service, start: Callable[..., Any]
) -> None:
    await service.key_of(Role.ADMIN)
    new = mint()
    create = Create(new.id, new.digest, "late", (Role.PRODUCER,), (), None, ANONYMOUS, None, new_id())
    await service.runtime.lane("keys.create").submit(create)  # this process's copy does not hear of it
    answer = await (await service.client(new.text)).post("/v1/demo/echo", json=GOOD)
    assert answer.status_code == 201


@pytest.mark.anyio
async def test_an_expired_key_is_refused(service: Service) -> None:
    await service.key_of(Role.ADMIN)
    key = await service.make_key(Role.ADMIN, expires_at=service.runtime.clock.now() + 3600 * MICROS)
    client = await service.client(key)
    assert (await client.get("/v1/api-keys")).status_code == 200
    service.runtime.clock.shift_micros = 3601 * MICROS
    is_problem(await client.get("/v1/api-keys"), 401, "unauthenticated")


@pytest.mark.anyio
async def test_names_outside_a_keys_patterns_are_forbidden(service: Service) -> None:
    await service.key_of(Role.ADMIN)
    client = await service.client(await service.make_key(Role.PRODUCER, patterns=("billing.*",)))
    assert (await client.post("/v1/demo/echo", json={**GOOD, "queue": "billing.x"})).status_code == 201
    problem = is_problem(await client.post("/v1/demo/echo", json={**GOOD, "queue": "mail"}), 403, "forbidden")
    assert problem["reason"] == "name_pattern"


@pytest.mark.anyio
async def test_a_copy_that_its_loop_left_behind_is_renewed_by_requests(service: Service) -> None:
    """After a fault the loop backs off for up to half a minute; revocations must be in force sooner than that."""
    admin = await service.key_of(Role.ADMIN)
    await service.runtime.loops["keys.directory"].stop()
    client = await service.client(admin)
    revoke = Revoke(admin.split("_")[1], ANONYMOUS, None, new_id())
    await service.runtime.lane("keys.revoke").submit(revoke)
    assert (await client.get("/v1/api-keys")).status_code == 200
    directory = service.runtime.state("keys")
    directory._loaded -= int(LATE_AFTER_SECONDS * MICROS)
    directory._tried = 0
    await client.get("/v1/api-keys")  # begins the renewal without waiting for it
    await directory._renewal
    is_problem(await client.get("/v1/api-keys"), 401, "unauthenticated")


@pytest.mark.anyio
async def test_a_copy_too_old_to_be_relied_on_is_renewed_before_it_is_used(service: Service) -> None:
    admin = await service.key_of(Role.ADMIN)
    await service.runtime.loops["keys.directory"].stop()
    directory = service.runtime.state("keys")
    client = await service.client(admin)
    directory._loaded -= 2 * STALE_AFTER_SECONDS * MICROS
    directory._tried = 0
    assert (await client.get("/v1/api-keys")).status_code == 200
    directory._loaded -= 2 * STALE_AFTER_SECONDS * MICROS
    service.runtime.lane("keys.directory").capacity = 0
    directory._tried = 0
    answer = await client.get("/v1/api-keys")
    is_problem(answer, 503, "database_unavailable")
    assert answer.headers["retry-after"] == "2"
