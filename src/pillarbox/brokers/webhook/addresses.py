"""Addresses: which of them a webhook may go to. Pure.

Whoever chooses an endpoint's name must not reach what only we can reach: our own machine, the network behind it, and
the services that hand out a cloud's credentials.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# A host that is allowed by its name may have one of these.
_INSIDE: Sequence[tuple[str, Sequence[str]]] = (
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
    ("unique local", ("fc00::/7",)),
    ("shared (carrier-grade NAT)", ("100.64.0.0/10",)),
)
# These must be allowed by the address itself: no name has a good reason to lead there.
_NOWHERE: Sequence[tuple[str, Sequence[str]]] = (
    ("cloud metadata", ("169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "168.63.129.16/32")),
    ("cloud metadata", ("192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128")),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("site-local", ("fec0::/10",)),
    # Where they lead is decided by a relay that somebody else may have chosen.
    ("Teredo", ("2001::/32",)),
    ("6to4 relay", ("192.88.99.0/24",)),
    ("local NAT64", ("64:ff9b:1::/48",)),
    # For documentation; Python does not know it yet.
    ("reserved", ("3fff::/20",)),
)
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")


def _table(kinds: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, Network]]:
    return [(kind, ip_network(network)) for kind, networks in kinds for network in networks]


_SOFT, _HARD = _table(_INSIDE), _table(_NOWHERE)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is allowed by name, although it is not public: hosts, and addresses or networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def why_not(self, host: str, address: str) -> str | None:
        """Say what kind of address this is, if a host of that name must not have it."""
        return next((kind for ip in _readings(ip_address(address)) if (kind := self._why_not(host, ip))), None)

    def _why_not(self, host: str, ip: Address) -> str | None:
        if _in(ip, self.networks):
            return None
        hard = _kind(ip, _HARD)
        if hard is not None:
            return hard
        soft = _kind(ip, _SOFT)
        if soft is not None:
            return None if host in self.hosts else soft
        return None if ip.is_global and not ip.is_reserved else "reserved"


def _readings(ip: Address) -> Iterator[Address]:
    """Give an address, or the IPv4 address that it stands for."""
    if not isinstance(ip, IPv6Address):
        yield ip
    elif ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
    elif ip.sixtofour is not None:
        yield ip.sixtofour
    elif ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        yield IPv4Address(int(ip) & 0xFFFFFFFF)
    else:
        yield ip


def _kind(ip: Address, table: Sequence[tuple[str, Network]]) -> str | None:
    return next((kind for kind, network in table if ip in network), None)


def _in(ip: Address, networks: Collection[Network]) -> bool:
    return any(ip in network for network in networks)
