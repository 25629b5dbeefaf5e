"""The servers that a page or an example asks for, where its programs find them by themselves."""

from collections.abc import Iterator

import pytest

from servers.kafka import Kafka
from servers.postgres import Postgres, RunningPostgres
from servers.rabbitmq import RabbitMQ
from tests.conftest import installed


@pytest.fixture
def shop_on_postgres(postgres: RunningPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty database `shop` on a server that every client finds by itself."""
    if not isinstance(postgres, Postgres):
        pytest.skip("needs a PostgreSQL of our own: the one of PILLARBOX_TEST_POSTGRES may have a database named shop")
    for name, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(postgres.port)), ("PGUSER", "postgres")):
        monkeypatch.setenv(name, value)
    postgres.create_database("shop")
    yield
    postgres.drop_database("shop")


@pytest.fixture
def shop_on_rabbitmq(rabbitmq: RabbitMQ, vhost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty virtual host, named by RABBITMQ_URL."""
    monkeypatch.setenv("RABBITMQ_URL", rabbitmq.url(vhost).replace("rabbitmq:", "amqp:"))


@pytest.fixture
def shop_on_kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kafka]:
    """A Kafka of its own, named by KAFKA, for the examples' topic and group always have the same names."""
    with installed(Kafka) as server:
        server.create_topic("order-events")
        monkeypatch.setenv("KAFKA", server.bootstrap)
        yield server


ASKS_FOR = {
    "<!-- on PostgreSQL -->": "shop_on_postgres",
    "<!-- on RabbitMQ -->": "shop_on_rabbitmq",
    "<!-- on Kafka -->": "shop_on_kafka",
}
"""What a page says, and the fixture that it gets."""
