"""Which addresses and URLs may be called: tables of known traps, and properties of all the others."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StartupProblem
from app.outgoing import headers, urls
from app.outgoing.addresses import Targets, globally_reachable
from app.outgoing.client import Outgoing, targets_of
from app.settings import Settings, load

DEFAULT = Targets()

REFUSED = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
    ),
    *("168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
    *("192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    *("::127.0.0.1", "::8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1"),
    *("2001::1", "2001:2::1", "2001:10::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "5f00::1"),
    *("4000::1", "fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "ff02::1"),
    *("ffff::1", "", "localhost", "1", "127.1", "0x7f000001", "1.2.3.4.5", "[::1]"),
]
ALLOWED = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "192.167.0.1",
    "223.255.255.255",
]
ALLOWED += ["2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "::ffff:8.8.8.8", "2620:fe::fe"]


@pytest.mark.parametrize("address", REFUSED)
def test_an_inner_special_or_malformed_address_is_refused(address: str) -> None:
    assert not DEFAULT.allows_address(address)


@pytest.mark.parametrize("address", ALLOWED)
def test_an_address_of_the_public_internet_is_allowed(address: str) -> None:
    assert DEFAULT.allows_address(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_the_same_in_its_mapped_form(address: IPv4Address) -> None:
    assert DEFAULT.allows_address(f"::ffff:{address}") is DEFAULT.allows_address(address)


@given(st.ip_addresses())
def test_nothing_that_python_calls_special_is_reachable(address: IPv4Address | IPv6Address) -> None:
    if globally_reachable(address):
        assert address.is_global
        assert not any([address.is_multicast, address.is_private, address.is_reserved, address.is_unspecified])


@given(
    st.ip_addresses(network="64:ff9b::/96")
    | st.ip_addresses(network="2002::/16")
    | st.ip_addresses(network="2001::/32")
)
def test_a_tunnel_is_closed_until_it_and_what_it_leads_to_are_both_allowed(address: IPv6Address) -> None:
    assert not DEFAULT.allows_address(address)
    tunnels = Targets.parse(["64:ff9b::/96", "2002::/16", "2001::/32"])
    inner = [IPv4Address(int(address) & 0xFFFFFFFF)] if address in IPv6Network("64:ff9b::/96") else []
    inner += [address.sixtofour] if address.sixtofour else []
    inner += list(address.teredo or ())
    assert tunnels.allows_address(address) is all(DEFAULT.allows_address(one) for one in inner)


def test_a_tunnel_to_an_inner_address_stays_closed_when_the_tunnel_is_allowed() -> None:
    allowed = Targets.parse(["64:ff9b::/96"])
    assert allowed.allows_address("64:ff9b::8.8.8.8")
    assert not allowed.allows_address("64:ff9b::169.254.169.254")


def test_a_network_allows_its_addresses_and_no_others() -> None:
    targets = Targets.parse(["10.1.0.0/16", "fd00:1::/32", "127.0.0.1"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5", "127.0.0.1", "8.8.8.8"):
        assert targets.allows_address(address)
    for address in ("10.2.0.1", "fd00:2::1", "127.0.0.2", "::10.1.2.3"):
        assert not targets.allows_address(address)


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "",
            "*",
            "*.",
            ".",
            "http://x",
            "x/y",
            "a b",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "300.1.1.1",
            "10.0.0",
            "0x7f000001",
            "2130706433",
        ),
        *(
            "::/129",
            "::ffff:10.0.0.0/104",
            "[::1]",
            "fe80::1%eth0",
            "host:80",
            "-x.test",
            "exämple.test",
            "a..b",
            "x.*",
        ),
    ],
)
def test_a_malformed_entry_stops_the_start_with_one_line_that_names_it(entry: str) -> None:
    with pytest.raises(StartupProblem) as stopped:
        Outgoing.from_settings(Settings(delivery_allowed_targets=("good.test", entry)))
    assert str(stopped.value).startswith("setting TENURE_DELIVERY_ALLOWED_TARGETS is wrong: entry 2 ")
    assert "\n" not in str(stopped.value)
    assert stopped.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ['["10.0.0.0/8", "x.test"]', "10.0.0.0/8,x.test", " 10.0.0.0/8\n x.test \n", "10.0.0.0/8, x.test"]
)
def test_targets_are_read_from_the_environment_as_json_or_words(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TENURE_DELIVERY_ALLOWED_TARGETS", text)
    targets = targets_of(load())
    assert targets.allows_address("10.9.9.9")
    assert targets.allows_name("x.test")


@pytest.mark.parametrize("text", ["[1]", "[", '[["x"]]'])
def test_a_list_that_is_none_stops_the_start(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TENURE_DELIVERY_ALLOWED_TARGETS", text)
    with pytest.raises(StartupProblem, match=r"setting TENURE_DELIVERY_ALLOWED_TARGETS is wrong: .*list"):
        load()


def test_a_file_of_authorities_that_is_none_stops_the_start(tmp_path: object) -> None:
    for path in (f"{tmp_path}/none.pem", __file__):
        with pytest.raises(StartupProblem, match="TENURE_DELIVERY_CA_FILE"):
            Outgoing.from_settings(Settings(delivery_ca_file=path))


# -- URLs ----------------------------------------------------------------------------------------------------------------

GOOD = [
    *("https://example.com", "http://example.com/", "HTTPS://Example.COM:8443/a/b?c=d&e=%20", "http://localhost."),
    *(
        "http://8.8.8.8:1/",
        "https://[2606:4700:4700::1111]/x",
        "http://xn--bcher-kva.example/",
        "http://a_b-c.test?x=/@:",
    ),
    *("http://example.com/@user:pw", "http://example.com:65535/!$&'()*+,;=~"),
]
BAD = [
    ("", "begin with"),
    ("example.com/x", "begin with"),
    ("ftp://example.com/", "begin with"),
    ("file:///etc/passwd", "begin with"),
    ("http:/example.com", "begin with"),
    ("//example.com", "begin with"),
    ("javascript:alert(1)", "begin with"),
    ("http://", "host"),
    ("http:///path", "host"),
    ("http://:80/", "host"),
    ("http://?x", "host"),
    ("http://user@example.com/", "user name"),
    ("http://user:pw@example.com/", "user name"),
    ("http://a@b@example.com/", "user name"),
    ("http://example.com/#x", "fragment"),
    ("http://example.com:0/", "port"),
    ("http://example.com:65536/", "port"),
    ("http://example.com:/", "port"),
    ("http://example.com:8x/", "port"),
    ("http://example.com:+80/", "port"),
    ("http://exa mple.com/", "space"),
    ("http://example.com/a b", "space"),
    ("http://example.com/\r\nx: y", "control"),
    ("http://example.com/\t", "control"),
    (" http://example.com/", "space"),
    ("http://exam\x00ple.com/", "control"),
    ("http://example.com\\@evil.test/", "backslash"),
    ("http://bücher.example/", "ASCII"),
    ("http://①②⑦.0.0.1/", "ASCII"),
    ("http://example。com/", "ASCII"),
    ("http://ex\u00adample.com/", "ASCII"),
    ("http://example.com/ü", "ASCII"),
    ("http://example.com/%zz", "%"),
    ("http://example.com/{x}", "percent-encoded"),
    ("http://example.com/|", "percent-encoded"),
    ("http://exam%70le.com/", "letters"),
    ("http://a..b/", "letters"),
    ("http://-a.test/", "letters"),
    ("http://a-.test/", "letters"),
    ("http://" + "a" * 64 + ".test/", "letters"),
    ("http://" + "a." * 127 + "test/", "letters"),
    ("http://2130706433/", "four decimal"),
    ("http://0x7f000001/", "four decimal"),
    ("http://0x7f.1/", "four decimal"),
    ("http://0177.0.0.1/", "four decimal"),
    ("http://127.1/", "four decimal"),
    ("http://0/", "four decimal"),
    ("http://127.0.0.1./", "four decimal"),
    ("http://1.2.3.256/", "four decimal"),
    ("http://evil.test.0x7f/", "four decimal"),
    ("http://[::1/", "URL like"),
    ("http://::1/", "port"),
    ("http://[]/", "IPv6"),
    ("http://[1.2.3.4]/", "IPv6"),
    ("http://[fe80::1%25eth0]/", "IPv6 zone"),
    ("http://[::1]x/", "URL like"),
    ("http://example.com/" + "a" * 2048, "at most"),
]


@pytest.mark.parametrize("url", GOOD)
def test_a_plain_url_may_be_registered(url: str) -> None:
    assert urls.problem_with(url) is None


@pytest.mark.parametrize(("url", "why"), BAD)
def test_an_odd_url_is_refused_with_its_reason(url: str, why: str) -> None:
    problem = urls.problem_with(url)
    assert problem is not None
    assert why in problem


def test_a_url_with_an_inner_address_is_refused_when_it_is_registered_unless_allowed() -> None:
    assert "TENURE_DELIVERY_ALLOWED_TARGETS" in str(urls.problem_with("http://127.0.0.1/", DEFAULT))
    assert "TENURE_DELIVERY_ALLOWED_TARGETS" in str(urls.problem_with("http://[::ffff:10.0.0.1]/", DEFAULT))
    assert urls.problem_with("http://10.0.0.1/", Targets.parse(["10.0.0.0/8"])) is None
    assert urls.problem_with("http://8.8.8.8/", DEFAULT) is None
    assert urls.problem_with("http://localhost/", DEFAULT) is None  # a name is judged when it is called


@given(st.text())
def test_no_text_breaks_the_check_or_is_repeated_by_it(text: str) -> None:
    problem = urls.problem_with(f"http://{text}canary-text")
    assert problem is None or "canary-text" not in problem


@given(st.from_regex(r"https?://[!-~]{1,40}", fullmatch=True))
def test_what_the_check_accepts_the_sender_reads_with_the_same_host_and_path(url: str) -> None:
    import httpx

    if urls.problem_with(url) is None:
        read = httpx.URL(url)
        authority, _, rest = url.partition("://")[2].partition("?")[0].partition("/")
        host = authority if authority.endswith("]") else authority.rsplit(":", 1)[0] if ":" in authority else authority
        assert read.raw_host.decode() == host.strip("[]").lower() or ip_address(read.host) == ip_address(
            host.strip("[]")
        )
        assert read.userinfo == b""
        assert not read.fragment
        assert read.path.startswith("/")
        assert rest == "" or len(read.raw_path) > 1


# -- headers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"Host": "x"},
        {"Content-Length": "1"},
        {"TRANSFER-ENCODING": "chunked"},
        {"Connection": "x"},
        {"ce-id": "1"},
        {"Webhook-Signature": "x"},
        {"Idempotency-Key": "x"},
        {"Content-Type": "x"},
        {"": "x"},
        {"a b": "x"},
        {"a:": "x"},
        {"x": "a\nb"},
        {"x": "a\x00b"},
        {"x": " a"},
        {"x": "a "},
        {"x": "ü"},
        {"x": "a" * 5000},
        {"x": "1", "X": "2"},
        {f"x-{number}": "1" for number in range(40)},
    ],
)
def test_a_header_that_is_ours_or_malformed_may_not_be_registered(fields: dict[str, str]) -> None:
    assert headers.problem_with(fields)


def test_plain_headers_may_be_registered() -> None:
    assert headers.problem_with({"Authorization": "Bearer abc.def", "X-Empty": "", "x-t": "a\tb c"}) is None
