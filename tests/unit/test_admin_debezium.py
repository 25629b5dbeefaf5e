"""The connector for Debezium: what stands in it, what is left out, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from pillarbox.admin.debezium import HEADERS, PASSWORD, Connector, preparation
from pillarbox.admin.kafka_connect import KafkaConnect
from pillarbox.core.event import RESERVED_HEADERS
from pillarbox.core.routing import Topic
from pillarbox.errors import ConfigError
from pillarbox.settings import OutboxSettings, Settings

URL = "postgresql://shop:hunter2@db.internal:5433/Shop-1?sslmode=require&connect_timeout=3"


def connector(url: str = URL, settings: Mapping[str, Any] | None = None, **options: Any) -> Connector:
    return Connector.of(Settings(database=url, **(settings or {})), **options)


def test_the_database_is_read_from_the_url() -> None:
    config = connector().config
    assert {name: value for name, value in config.items() if name.startswith("database.")} == {
        "database.hostname": "db.internal",
        "database.port": "5433",
        "database.user": "shop",
        "database.dbname": "Shop-1",
        "database.sslmode": "require",
        "database.password": PASSWORD,
    }
    assert connector("postgresql+psycopg://shop@db/shop").config["database.port"] == "5432"


def test_connector_slot_and_publication_have_one_name_with_the_databases() -> None:
    made = connector()
    names = {made.name, *(made.config[key] for key in ("slot.name", "publication.name", "topic.prefix"))}
    assert names == {"shop_1_pillarbox_outbox"}
    elsewhere = connector(settings={"outbox": OutboxSettings("sales", "pb_")})
    assert elsewhere.name == "shop_1_sales_pb_outbox"
    assert elsewhere.config["table.include.list"] == "sales.pb_outbox"
    assert elsewhere.config["column.include.list"].startswith("sales.pb_outbox.(id|event_id|")
    assert connector(name="mine").config["slot.name"] == "mine"


def test_every_header_of_the_plain_format_is_there() -> None:
    assert {"id", *HEADERS.values()} == RESERVED_HEADERS - {"content-type"} | {"pillarbox-headers"}
    placed = connector().config["transforms.outbox.table.fields.additional.placement"]
    assert "event_type:header:type" in placed.split(",")


def test_the_chosen_column_is_carried_and_the_other_one_is_not_read() -> None:
    for payload, carried, other in (("json", "payload", "body"), ("body", "body", "payload")):
        config = connector(payload=payload).config
        assert config["transforms.outbox.table.field.event.payload"] == carried
        columns = config["column.include.list"].partition("(")[2].rstrip(")").split("|")
        assert carried in columns
        assert other not in columns
        assert f"has no {carried} but a {other}" in config["transforms.refuse.format"]


def test_the_password_is_left_out_unless_it_is_asked_for() -> None:
    assert "hunter2" not in str(connector())
    assert connector().has_placeholder
    assert connector(with_password=True).config["database.password"] == "hunter2"
    assert not connector(with_password=True).has_placeholder
    named = connector(password_from="${file:/etc/db.properties:password}")
    assert named.config["database.password"] == "${file:/etc/db.properties:password}"
    assert "database.password" not in connector("postgresql://shop@db/shop").config


def test_heartbeats_are_sent_only_if_they_are_asked_for() -> None:
    assert not any(name.startswith("heartbeat") for name in connector().config)
    assert connector(heartbeat=10).config["heartbeat.interval.ms"] == "10000"


def test_properties_can_be_added_and_changed() -> None:
    options = {"poll.interval.ms": "1", "database.hostname": "db", "slot.failover": "true"}
    assert options.items() <= connector(options=options).config.items()


@pytest.mark.parametrize(
    "name",
    [
        "errors.tolerance",
        "transforms",
        "transforms.outbox.route.by.field",
        "predicates.empty.type",
        "value.converter",
        "header.converter",
        "table.include.list",
        "column.exclude.list",
        "skipped.operations",
        "binary.handling.mode",
        "message.prefix.include.list",
        "database.password",
    ],
)
def test_what_would_change_or_lose_events_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--option {name}: cannot be set"):
        connector(options={name: "x"})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "database: is not set"),
        ("sqlite:///shop.db", "Debezium is for an outbox on PostgreSQL, and this one is on sqlite"),
        ("postgresql:///shop", "must name the user, one host and the database"),
        ("postgresql://shop@/shop", "must name the user"),
        ("postgresql://db/shop", "must name the user"),
        ("postgresql://shop@db", "must name the user"),
        ("postgresql://shop@db:x/shop", "must name the user"),
        ("postgresql://shop@one:5432,two:5432/shop", "one host"),
    ],
)
def test_a_database_that_a_connector_could_not_find_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        connector(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "Shop"}, "--name: 'Shop' must be small letters"),
        ({"name": "x" * 64}, "at most 63"),
        ({"with_password": True, "password_from": PASSWORD}, "give one of them"),
        ({"password_from": "hunter2"}, "is no placeholder"),
        ({"settings": {"topics": {"t": Topic(format="cloudevents")}}}, "topic.t.format: cloudevents is written by a"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        connector(**options)
    assert "hunter2" not in str(refused.value)


def test_without_a_password_there_is_none_to_write_out() -> None:
    with pytest.raises(ConfigError, match="the database's URL holds no password"):
        connector("postgresql://shop@db/shop", with_password=True)


def test_the_script_makes_the_publication_before_the_slot() -> None:
    script = preparation(Settings(database='postgresql://o"neil@db/shop'))
    publication = (
        """CREATE PUBLICATION "shop_pillarbox_outbox" FOR TABLE public.pillarbox_outbox WITH (publish = 'insert')"""
    )
    slot = "pg_create_logical_replication_slot('shop_pillarbox_outbox', 'pgoutput')"
    assert 0 < script.index(publication) < script.index("COMMIT;") < script.index(slot)
    assert 'GRANT SELECT ON public.pillarbox_outbox TO "o""neil";' in script


@pytest.mark.parametrize("url", ["host:8083", "ftp://host", "http://", "kafka://host:9092"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--register: what was given is not the address of Kafka Connect"):
        KafkaConnect(url)
