"""Redis behind TLS: the certificate is checked, unless somebody says that unsafe is fine."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pillarbox.errors import BrokerUnavailable
from pillarbox.testing.contracts.publisher import batch
from servers.process import free_port, workdir
from servers.redis import Redis
from tests.integration.test_redis import publish, publisher_at


class Secured(NamedTuple):
    """A server that listens with TLS too, and the certificate that vouches for it."""

    url: str
    certificate: Path


@pytest.fixture
def secured(own_redis: Callable[..., Redis]) -> Iterator[Secured]:
    """Redis with a certificate of its own making for 127.0.0.1."""
    directory = workdir("certificate")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    key.chmod(0o644)
    port = free_port()
    tls = {"tls-cert-file": str(certificate), "tls-key-file": str(key), "tls-auth-clients": "no"}
    own_redis("redis", **{"tls-port": str(port), "tls-ca-cert-file": str(certificate), **tls})
    yield Secured(f"rediss://127.0.0.1:{port}/0", certificate)
    shutil.rmtree(directory)


async def test_a_certificate_that_is_vouched_for_is_trusted(secured: Secured) -> None:
    async with publisher_at(secured.url, ssl_ca_certs=str(secured.certificate)) as publisher:
        assert await publish(publisher, batch("ab")) == {1: None, 2: None}


async def test_a_certificate_that_nobody_vouches_for_is_an_outage_with_the_reason(secured: Secured) -> None:
    async with publisher_at(secured.url) as publisher:
        errors = await publish(publisher, batch("a"))
    assert isinstance(errors[1], BrokerUnavailable)
    assert "certificate verify failed" in str(errors[1])


async def test_unsafe_takes_any_certificate(secured: Secured) -> None:
    async with publisher_at(secured.url, ssl_cert_reqs="none", unsafe=True) as publisher:
        assert await publish(publisher, batch("a")) == {1: None}


async def test_a_port_without_tls_is_told_of(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.wire.HANDSHAKE", 0.1)
    async with publisher_at(redis.url().replace("redis://", "rediss://")) as publisher:
        errors = await publish(publisher, batch("a"))
    assert isinstance(errors[1], BrokerUnavailable)
    assert "perhaps this port does not speak TLS" in str(errors[1])
