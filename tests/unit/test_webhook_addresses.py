"""Which addresses webhooks may go to."""

from ipaddress import ip_network

import pytest

from pillarbox.brokers.webhook.addresses import Allowed

FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "::1": "loopback",
    "10.0.0.1": "private",
    "10.255.255.255": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.0.1": "private",
    "fc00::1": "unique local",
    "fdff::1": "unique local",
    "100.64.0.1": "shared (carrier-grade NAT)",
    "100.127.255.255": "shared (carrier-grade NAT)",
    "169.254.169.254": "cloud metadata",
    "169.254.170.2": "cloud metadata",
    "100.100.100.200": "cloud metadata",
    "168.63.129.16": "cloud metadata",
    "192.0.0.192": "cloud metadata",
    "fd00:ec2::254": "cloud metadata",
    "fd20:ce::254": "cloud metadata",
    "169.254.0.1": "link-local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "febf::1": "link-local",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "ff02::1": "multicast",
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "::": "unspecified",
    "fec0::1": "site-local",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo",
    "64:ff9b:1::1": "local NAT64",
    "192.88.99.1": "6to4 relay",
    "3fff::1": "reserved",
    "3fff:fff:ffff::1": "reserved",
    "192.0.2.1": "reserved",
    "198.18.0.1": "reserved",
    "198.51.100.1": "reserved",
    "203.0.113.1": "reserved",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "2001:db8::1": "reserved",
    "100::1": "reserved",
    # An IPv4 address in another dress.
    "::ffff:127.0.0.1": "loopback",
    "::ffff:10.0.0.1": "private",
    "::ffff:169.254.169.254": "cloud metadata",
    "::ffff:0:0": "unspecified",
    "::127.0.0.1": "loopback",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b::a9fe:a9fe": "cloud metadata",
    "64:ff9b::c0a8:1": "private",
    "2002:7f00:1::": "loopback",
    "2002:c058:6301::": "6to4 relay",
    "2002:a9fe:a9fe::1": "cloud metadata",
}


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_is_not_public_is_forbidden(address: str) -> None:
    assert Allowed().why_not("hooks.example", address) == FORBIDDEN[address]


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:2800:220:1::1", "64:ff9b::808:808", "2002:808:808::"],
)
def test_what_is_public_is_not(address: str) -> None:
    assert Allowed().why_not("hooks.example", address) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "fd12::1", "100.64.0.1", "::ffff:10.0.0.1"])
def test_a_host_that_is_allowed_by_name_may_be_inside(address: str) -> None:
    allowed = Allowed(frozenset(["hooks.internal"]))
    assert allowed.why_not("hooks.internal", address) is None
    assert allowed.why_not("other.internal", address) is not None


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "100.100.100.200"])
def test_a_host_that_is_allowed_by_name_may_not_be_what_no_host_is(address: str) -> None:
    assert Allowed(frozenset(["hooks.internal"])).why_not("hooks.internal", address) is not None


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"])
def test_a_network_that_is_allowed_is_allowed_in_every_dress(address: str) -> None:
    allowed = Allowed(networks=(ip_network("10.1.2.0/24"),))
    assert allowed.why_not("hooks.example", address) is None
    assert allowed.why_not("hooks.example", "10.1.3.1") == "private"
