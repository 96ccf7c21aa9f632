"""Where connections go: names, addresses, TLS. The addresses of this machine stand for those of the internet."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import trustme

from app.outgoing.addresses import Targets
from app.outgoing.backend import GuardedBackend, NotConnected, Progress
from app.outgoing.client import Outgoing
from app.outgoing.replies import Call, Fate, Reply
from app.outgoing.resolving import Resolver
from tests.outgoing.conftest import LOOPBACK
from tests.outgoing.peer import Act, Connection, Peer, ok, serving

pytestmark = pytest.mark.anyio

ONE = Targets.parse(["127.0.0.1"])  # the only "public" address of these tests
SOON = 1.0


async def get(outgoing: Outgoing, url: str, timeout: float = 30.0) -> Reply:
    return await outgoing.send(Call("GET", url, timeout_seconds=timeout))


INNER = [
    "127.0.0.1",
    "127.1",
    "127.0.0.1.",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]",
    "169.254.169.254",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "224.0.0.1",
    "255.255.255.255",
]
# the C library finds nothing by these, or something, according to its version and to the machine's own list of names
NO_ADDRESS_HERE = {"localhost.": ("dns",), "127.0.0.1.": ("dns",)}


@pytest.mark.parametrize("host", INNER)
async def test_no_form_of_an_inner_address_is_called_by_default(host: str) -> None:
    async with serving(ok) as peer, Outgoing(Targets()) as outgoing:
        reply = await get(outgoing, peer.url(host))
        assert reply.fate is Fate.NOT_SENT
        assert reply.reason in ("refused_address", "invalid_request", *NO_ADDRESS_HERE.get(host, ()))
        assert peer.connections == 0


@pytest.mark.parametrize("host", INNER)
async def test_the_check_at_the_connection_refuses_them_without_the_check_of_the_url(host: str) -> None:
    async with serving(ok) as peer:
        with pytest.raises(NotConnected) as refused:
            await GuardedBackend(Targets(), Resolver(), Progress()).connect_tcp(host.strip("[]"), peer.port)
        assert refused.value.reason in ("refused_address", *NO_ADDRESS_HERE.get(host, ()))
        assert peer.connections == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost", "::ffff:127.0.0.1"]
)
async def test_those_forms_would_have_reached_this_machine(host: str) -> None:
    """The tests above would prove nothing if these hosts meant nothing."""
    everything = Targets.parse(["0.0.0.0/0", "::/0"])
    async with serving(ok) as peer:
        stream = await GuardedBackend(everything, Resolver(), Progress()).connect_tcp(host, peer.port)
        await stream.aclose()


@pytest.mark.parametrize("host", ["[fe80::1%25lo]", "[::1%25lo]", "[::1%lo]", "a@127.0.0.1", "127.0.0.1\\@x.test", ""])
async def test_what_is_no_plain_host_is_not_called(host: str) -> None:
    async with serving(ok) as peer, Outgoing(LOOPBACK) as outgoing:
        reply = await get(outgoing, peer.url(host))
        assert (reply.fate, reply.reason, peer.connections) == (Fate.NOT_SENT, "invalid_request", 0)


async def test_a_name_that_changes_its_address_after_the_check_is_never_asked_twice_in_a_call() -> None:
    """DNS rebinding: the first answer is public, all others are not."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2"]])
    asked: list[str] = []

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        return next(answers)

    async with (
        serving(ok) as public,
        serving(ok, host="127.0.0.2", port=public.port) as inner,
        Outgoing(ONE, resolve=resolve) as outgoing,
    ):
        first = await get(outgoing, public.url("rebinding.test"))
        assert (first.status, asked) == (200, ["rebinding.test"])
        second = await get(outgoing, public.url("rebinding.test"))
        assert (second.fate, second.reason) == (Fate.NOT_SENT, "refused_address")
        assert (public.connections, inner.connections) == (1, 0)


@pytest.mark.parametrize("addresses", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"]])
async def test_one_inner_address_among_several_is_enough_to_refuse(addresses: list[str]) -> None:
    async def resolve(host: str) -> list[str]:
        return addresses

    async with serving(ok) as peer, Outgoing(ONE, resolve=resolve) as outgoing:
        reply = await get(outgoing, peer.url("both.test"))
        assert (reply.fate, reply.reason, peer.connections) == (Fate.NOT_SENT, "refused_address", 0)


async def test_an_address_that_refuses_is_followed_by_the_next() -> None:
    async def resolve(host: str) -> list[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with serving(ok) as peer, Outgoing(LOOPBACK, resolve=resolve) as outgoing:
        assert (await get(outgoing, peer.url("two.test"))).status == 200


async def test_an_allowed_name_is_called_whatever_it_resolves_to() -> None:
    async def resolve(host: str) -> list[str]:
        return ["127.0.0.1"]

    allowed = Targets.parse(["hooks.internal", "*.corp.test"])
    async with serving(ok) as peer, Outgoing(allowed, resolve=resolve) as outgoing:
        for host, fate in (
            ("hooks.internal", Fate.ANSWERED),
            ("HOOKS.internal.", Fate.ANSWERED),
            ("a.b.corp.test", Fate.ANSWERED),
            ("corp.test", Fate.NOT_SENT),
            ("evilcorp.test", Fate.NOT_SENT),
            ("hooks.internal.evil.test", Fate.NOT_SENT),
        ):
            assert (await get(outgoing, peer.url(host))).fate is fate, host


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a" * 63 + "." + "b" * 63 + ".invalid"])
async def test_a_name_without_an_address_is_not_sent(host: str) -> None:
    async with Outgoing(Targets()) as outgoing:
        reply = await get(outgoing, f"http://{host}/")
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "dns")


@pytest.mark.parametrize("answer", [[], ["nonsense"], [""], ["localhost"], ["127.0.0.1", "localhost"]])
async def test_a_resolver_that_answers_nonsense_connects_nowhere(answer: list[str]) -> None:
    async def resolve(host: str) -> list[str]:
        return answer

    async with serving(ok) as peer, Outgoing(Targets.parse(["x.test"]), resolve=resolve) as outgoing:
        reply = await get(outgoing, peer.url("x.test"))
        assert (reply.fate, reply.reason, peer.connections) == (Fate.NOT_SENT, "dns", 0)


async def test_name_servers_that_hang_end_with_the_call_as_not_sent() -> None:
    async def resolve(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with Outgoing(LOOPBACK, resolve=resolve) as outgoing:
        reply = await get(outgoing, "http://slow.test/", SOON)
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "dns_timeout")


async def test_callers_share_a_lookup_and_one_that_leaves_does_not_end_it_for_the_rest() -> None:
    resolver = Resolver()
    first = asyncio.create_task(resolver("localhost"))
    second = asyncio.create_task(resolver("localhost"))
    await asyncio.sleep(0)
    first.cancel()
    assert "127.0.0.1" in await second or "::1" in await second
    assert await resolver("localhost") == second.result()


async def test_too_many_lookups_are_refused_and_not_queued() -> None:
    resolver = Resolver(limit=1)
    first = asyncio.create_task(resolver("localhost"))
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="too many"):
        await resolver("other.invalid")
    assert await first
    assert await resolver("127.0.0.1") == ["127.0.0.1"]


async def test_a_unix_socket_is_refused() -> None:
    backend = GuardedBackend(LOOPBACK, Resolver(), Progress())
    with pytest.raises(NotConnected):
        await backend.connect_unix_socket("/run/some.sock")


# -- TLS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


async def call_over_tls(
    authority: trustme.CA, context: ssl.SSLContext | None, *, act: Act = ok, timeout: float = 30.0
) -> tuple[Reply, Peer]:
    """Call https://service.test, which is this machine, trusting `authority`."""

    async def resolve(host: str) -> list[str]:
        return ["127.0.0.1"]

    trust = httpx.create_ssl_context(trust_env=False)
    authority.configure_trust(trust)
    async with (
        serving(act, context=context) as peer,
        Outgoing(ONE, resolve=resolve, context=trust) as outgoing,
    ):
        return await get(outgoing, f"https://service.test:{peer.port}/", timeout), peer


async def test_a_certificate_for_the_name_is_taken(authority: trustme.CA) -> None:
    reply, peer = await call_over_tls(authority, server_context(authority.issue_cert("service.test")))
    assert (reply.fate, reply.status) == (Fate.ANSWERED, 200)
    assert b"host: service.test" in peer.requests[0].lower()


@pytest.mark.parametrize("fault", ["name", "address only", "expired", "authority"])
async def test_a_wrong_certificate_is_not_sent_to(authority: trustme.CA, fault: str) -> None:
    certificate = {
        "name": lambda: authority.issue_cert("other.test"),
        "address only": lambda: authority.issue_cert("127.0.0.1"),  # the address that was connected to is not the name
        "expired": lambda: authority.issue_cert("service.test", not_after=datetime.now(UTC) - timedelta(days=1)),
        "authority": lambda: trustme.CA().issue_cert("service.test"),
    }[fault]()
    reply, peer = await call_over_tls(authority, server_context(certificate))
    assert (reply.fate, reply.reason, peer.requests) == (Fate.NOT_SENT, "tls", [])
    said = {"expired": "certificate has expired", "authority": "unable to get local issuer", "name": "not valid for"}
    assert said.get(fault, "") in reply.detail


async def test_a_handshake_that_never_ends_is_not_sent(authority: trustme.CA) -> None:
    async def act(connection: Connection) -> None:
        await connection.hang()

    reply, _ = await call_over_tls(authority, None, act=act, timeout=SOON)
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "tls_timeout")


async def resets(connection: Connection) -> None:
    await connection.reader.read(1)
    connection.reset()


async def closes(connection: Connection) -> None:
    await connection.reader.read(1)


async def speaks_plainly(connection: Connection) -> None:
    await connection.reader.read(1)
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    await connection.hang()


@pytest.mark.parametrize("act", [resets, closes, speaks_plainly])
async def test_a_handshake_that_breaks_is_not_sent(authority: trustme.CA, act: Act) -> None:
    reply, _ = await call_over_tls(authority, None, act=act)
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "tls")


async def test_a_client_certificate_that_is_missed_only_after_the_handshake_leaves_doubt(authority: trustme.CA) -> None:
    """In TLS 1.3 the server refuses when the client has already sent: what it did with the request, nobody can prove."""
    context = server_context(authority.issue_cert("service.test"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    reply, _ = await call_over_tls(authority, context)
    assert reply.fate is Fate.MAYBE_SENT
    assert reply.reason in ("reset", "no_answer")


async def test_a_call_over_tls_that_breaks_after_the_request_is_in_doubt(authority: trustme.CA) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        connection.reset()

    reply, peer = await call_over_tls(authority, server_context(authority.issue_cert("service.test")), act=act)
    assert (reply.fate, len(peer.requests)) == (Fate.MAYBE_SENT, 1)


async def test_a_handshake_that_is_cut_by_its_deadline_leaves_no_open_socket(authority: trustme.CA) -> None:
    closed = asyncio.Event()

    async def act(connection: Connection) -> None:
        while await connection.reader.read(65536):
            pass
        closed.set()
        await connection.hang()

    async def resolve(host: str) -> list[str]:
        return ["127.0.0.1"]

    async with serving(act) as peer, Outgoing(ONE, resolve=resolve) as outgoing:
        await get(outgoing, f"https://service.test:{peer.port}/", SOON)
        await asyncio.wait_for(closed.wait(), 10)


def test_the_numbers_of_this_file_are_addresses_of_this_machine() -> None:
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        with socket.socket() as probe:
            probe.bind((address, 0))
