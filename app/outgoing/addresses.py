"""Which addresses the service may call. Pure: no name is looked up here.

By default only globally reachable unicast addresses, so that nobody can use the service to reach what stands behind its
firewall. TENURE_DELIVERY_ALLOWED_TARGETS adds to that. The lists are our own: `ipaddress` calls 224.0.0.0/4, 2002::/16,
64:ff9b::/96 and fec0::/10 global, and does not call 100.64.0.0/10 private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host; Linux connects it to itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers and by clouds for their own services
        "127.0.0.0/8",
        "168.63.129.16/32",  # public by its number, but Azure's own service inside each of its machines
        "169.254.0.0/16",  # link-local, and the metadata of nearly every cloud
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")  # all that was ever given out; the rest is refused without a list
_REFUSED_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?", re.ASCII)
_NUMBER = re.compile(r"(\d+|0[xX][0-9A-Fa-f]*)", re.ASCII)


def plain_name(host: str) -> str:
    """A host name as names are compared: small letters, without the dot at the end."""
    return host.lower().removesuffix(".")


def ends_in_number(host: str) -> bool:
    """Whether libraries read such a host as an IPv4 address, also as one number, in octal or in hexadecimal."""
    return _NUMBER.fullmatch(plain_name(host).rpartition(".")[2]) is not None


def is_address(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address as the standard writes it."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def globally_reachable(address: Address) -> bool:
    """Whether this address is one of the public internet's, for one host."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_4)
    return address in _GLOBAL_6 and address.is_global and not any(address in network for network in _REFUSED_6)


@dataclass(frozen=True, slots=True)
class Targets:
    """What may be called: the public internet, and what an operator allowed besides."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """From CIDRs, addresses, host names and `*.suffix`. Raises ValueError that names the entry by its number."""
        networks: list[Network] = []
        hosts: set[str] = set()
        suffixes: list[str] = []
        for number, entry in enumerate(entries, 1):
            network = _network(entry, number)
            if network is not None:
                networks.append(network)
                continue
            if len(entry) > 253 or not _HOST.fullmatch(entry) or ends_in_number(entry):
                raise ValueError(
                    f"entry {number} is no CIDR (10.0.0.0/8), address, host name or *.suffix; all is 0.0.0.0/0 and ::/0"
                )
            if entry.startswith("*."):
                suffixes.append(plain_name(entry[1:]))
            else:
                hosts.add(plain_name(entry))
        return cls(tuple(networks), frozenset(hosts), tuple(suffixes))

    def allows_name(self, host: str) -> bool:
        """Whether this host may be called whatever it resolves to."""
        name = plain_name(host)
        return name in self.hosts or any(name.endswith(suffix) for suffix in self.suffixes)

    def allows_address(self, address: str | Address) -> bool:
        """Whether a connection to this address may be opened. False for what is no address.

        An address inside the address (IPv4-mapped, 6to4, NAT64, …) must be allowed as well, because that is where the
        packets go; to allow such a form itself, an operator names it.
        """
        try:
            found = ip_address(address)
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found in _MAPPED:
            found = IPv4Address(int(found) & 0xFFFF_FFFF)  # the kernel connects to this one
        if any(found in network for network in self.networks):
            return all(self.allows_address(inner) for inner in _embedded(found))
        return globally_reachable(found)

    def allows(self, host: str, addresses: Iterable[str]) -> bool:
        """Whether `host`, which has these addresses, may be called: one that is refused is enough to refuse all."""
        return self.allows_name(host) or all(self.allows_address(address) for address in addresses)


def _network(entry: str, number: int) -> Network | None:
    """The entry as a network; None if it does not look like one."""
    if "%" in entry or not ("/" in entry or ":" in entry or ends_in_number(entry)):
        return None
    try:
        network = ip_network(entry)
    except ValueError:
        try:
            ip_network(entry, strict=False)
        except ValueError:
            return None
        raise ValueError(f"entry {number} has bits set past its prefix length") from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        raise ValueError(f"entry {number} holds IPv4 addresses; write them as IPv4")
    return network


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that packets to this one may end at."""
    if isinstance(address, IPv4Address):
        return
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _NAT64 or (address in _COMPATIBLE and int(address) >= 1 << 24):
        yield last
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
