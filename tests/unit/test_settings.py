"""Settings: precedence, origins, and every refusal."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.core.routing import Topic
from pillarbox.errors import ConfigError
from pillarbox.settings import RelaySettings, RetentionSettings, Settings
from pillarbox.settings.kinds import known_keys
from pillarbox.settings.template import MEANINGS, template
from pillarbox.settings.urls import file_of, parse_url


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


NOTHING: Mapping[str, str] = {}


def load(
    text: str = "", *, environment: Mapping[str, str] = NOTHING, flags: Mapping[str, str | None] = NOTHING
) -> Settings:
    Path("pillarbox.toml").write_text(text, encoding="utf-8")
    return Settings.load(environment=environment, flags=flags)


def refusal(text: str = "", *, environment: Mapping[str, str] = NOTHING, flags: Mapping[str, str] = NOTHING) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, environment=environment, flags=flags)
    return str(caught.value)


def test_without_anything_the_defaults_hold() -> None:
    assert Settings.load(environment={}) == Settings()


def test_the_file_in_the_current_directory_is_read() -> None:
    settings = load('database = "sqlite:///shop.db"\n[relay]\nbatch = 10\nlease = "1 min"\n')
    assert settings.database == "sqlite:///shop.db"
    assert settings.relay == RelaySettings(batch=10, lease=timedelta(minutes=1))


def test_the_environment_wins_over_the_file() -> None:
    assert load("relay.batch = 10", environment={"PILLARBOX_RELAY_BATCH": "20"}).relay.batch == 20


def test_a_flag_wins_over_the_environment() -> None:
    environment = {"PILLARBOX_DATABASE": "sqlite:///environment.db"}
    assert load(environment=environment, flags={"database": "sqlite:///flag.db"}).database == "sqlite:///flag.db"


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert load('database = "sqlite:///shop.db"', flags={"database": None}).database == "sqlite:///shop.db"


def test_each_value_remembers_where_it_came_from() -> None:
    settings = load("[relay]\nbatch = 10", environment={"PILLARBOX_RELAY_RETRIES": "2"}, flags={"broker": "stdout:"})
    origins = {one.key: one.origin for one in settings.shown()}
    assert origins["relay.batch"] == "pillarbox.toml"
    assert origins["relay.retries"] == "PILLARBOX_RELAY_RETRIES"
    assert origins["broker"] == "--broker"
    assert origins["relay.lease"] == "default"


def test_a_file_named_by_the_environment_is_read(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[relay]\nbatch = 7")
    settings = Settings.load(environment={"PILLARBOX_CONFIG": str(other)})
    assert settings.relay.batch == 7
    assert settings.origins["relay.batch"] == str(other)


def test_a_named_file_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "named.toml").write_text("[relay]\nbatch = 8")
    assert Settings.load("named.toml", environment={"PILLARBOX_CONFIG": "missing.toml"}).relay.batch == 8


def test_a_named_file_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^missing.toml: cannot be read: No such file or directory"):
        Settings.load("missing.toml", environment={})


def test_topics_have_settings_of_their_own() -> None:
    settings = load('[topic."order.events"]\norder = "none"\nformat = "cloudevents"')
    assert settings.topics == {"order.events": Topic(order="none", format="cloudevents")}


def test_a_topic_says_where_messages_that_are_not_ours_have_what() -> None:
    settings = load('[topic."legacy"]\nid = "header message-id"\ntype = "is OrderPlaced"\nkey = "body order.id"')
    assert settings.topics == {"legacy": Topic(id="header message-id", type="is OrderPlaced", key="body order.id")}
    with pytest.raises(ConfigError, match=r"^topic\.legacy\.id: 'headr x' is no place .* \(pillarbox\.toml\)$"):
        load('[topic."legacy"]\nid = "headr x"')


def test_a_topic_can_be_set_by_a_flag() -> None:
    assert load(flags={"topic.order.events.when_dead": "skip"}).topics == {"order.events": Topic(when_dead="skip")}


def test_a_brokers_own_table_is_kept_as_it_is() -> None:
    settings = load("[kafka]\nunsafe = false\nlinger = 5", environment={"PILLARBOX_KAFKA_SASL_PASSWORD": "x"})
    assert settings.options == {"kafka": {"unsafe": False, "linger": 5, "sasl_password": "x"}}


@pytest.mark.parametrize(("text", "kept"), [("none", timedelta(0)), ("forever", None), ("2 h", timedelta(hours=2))])
def test_retention_may_be_none_forever_or_a_duration(text: str, kept: timedelta | None) -> None:
    assert load(f'[retention]\npublished = "{text}"').retention == RetentionSettings(published=kept)


def test_no_canary_is_no_duration() -> None:
    assert load('[health]\ncanary = "none"').health.canary is None


def test_malformed_toml_names_the_file_and_the_line() -> None:
    assert refusal('database = "a"\nrelay batch\n').startswith("pillarbox.toml: ")
    assert "line 2" in refusal('database = "a"\nrelay batch\n')


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    Path("pillarbox.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"^pillarbox.toml: .*utf-8"):
        Settings.load(environment={})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[relay]\nbach = 10",
            "unknown setting 'relay.bach' (pillarbox.toml); the nearest known one is 'relay.batch'",
        ),
        (
            'databse = "sqlite:///shop.db"',
            "unknown setting 'databse' (pillarbox.toml); the nearest known one is 'database'",
        ),
        (
            "[relai]\nbatch = 10",
            "unknown setting 'relai.batch' (pillarbox.toml); the nearest known one is 'relay.batch'",
        ),
        (
            '[topic."order-events"]\nordr = "none"',
            "unknown setting 'topic.order-events.ordr' (pillarbox.toml); the nearest known one is"
            " 'topic.order-events.order'",
        ),
        (
            "[health]\ncolour = 10",
            "unknown setting 'health.colour' (pillarbox.toml); known are health.listen, health.oldest_pending,"
            " health.canary, health.canary_topic",
        ),
        (
            "[foo]\nbarbaz = 1",
            "unknown setting 'foo.barbaz' (pillarbox.toml); known are database, broker, [outbox], [relay],"
            " [retention], [inbox], [health], [topic]",
        ),
        (
            "[relay]\nconcurrency = 1",
            "unknown setting 'relay.concurrency' (pillarbox.toml); the nearest known one is 'inbox.concurrency'",
        ),
        (
            '[topic."order-events"]\ncolour = "none"',
            "unknown setting 'topic.order-events.colour' (pillarbox.toml); known are topic.order-events.order,"
            " topic.order-events.when_dead, topic.order-events.format, topic.order-events.id, topic.order-events.type,"
            " topic.order-events.key",
        ),
        (
            "relay = 5",
            "pillarbox.toml: relay is a table: write [relay] and its settings below it",
        ),
        (
            '[topic]\norder = "none"',
            'pillarbox.toml: topic.order is no setting: write [topic."name"], and order = … below it',
        ),
        (
            '[relay]\nbatch = "many"',
            "relay.batch (pillarbox.toml): expected a whole number, found text",
        ),
        (
            "[relay]\nbatch = 1.5",
            "relay.batch (pillarbox.toml): expected a whole number, found float 1.5",
        ),
        (
            "[relay]\nbatch = true",
            "relay.batch (pillarbox.toml): expected a whole number, found bool True",
        ),
        (
            "[relay]\nlease = 15",
            'relay.lease (pillarbox.toml): expected a duration such as "15 s", found int 15',
        ),
        (
            '[relay]\nlease = "15 fortnights"',
            "relay.lease (pillarbox.toml): not a duration: write a number and one of"
            ' ms, s, min, h, day, days, such as "15 s"',
        ),
        (
            '[relay]\nlease = "none"',
            "relay.lease (pillarbox.toml): not a duration: write a number and one of"
            ' ms, s, min, h, day, days, such as "15 s"',
        ),
        (
            "database = 5",
            "database (pillarbox.toml): expected text, found int 5",
        ),
        (
            'database = ""',
            "database (pillarbox.toml): is empty: leave it out, or give it a value",
        ),
        (
            '[inbox]\nmode = "later"',
            "inbox.mode (pillarbox.toml): expected one of handle, store",
        ),
        (
            "[relay]\nbatch = 0",
            "relay.batch: 0 is below 1 (pillarbox.toml)",
        ),
        (
            "[relay]\nbatch = 100_001",
            "relay.batch: 100001 is above 100,000 (pillarbox.toml)",
        ),
        (
            "[relay]\nretries = 1_001",
            "relay.retries: 1001 is above 1,000 (pillarbox.toml)",
        ),
        (
            "[inbox]\nconcurrency = 1_001",
            "inbox.concurrency: 1001 is above 1,000 (pillarbox.toml)",
        ),
        (
            '[relay]\nlease = "36501 days"',
            "relay.lease: 36501 days is above 36,500 days (pillarbox.toml)",
        ),
        (
            '[retention]\npublished = "1000000 days"',
            "retention.published: 1000000 days is above 36,500 days (pillarbox.toml)",
        ),
        (
            '[health]\ncanary = "36501 days"',
            "health.canary: 36501 days is above 36,500 days (pillarbox.toml)",
        ),
        (
            '[health]\ncanary = "0 s"',
            "health.canary: must be longer than zero (pillarbox.toml)",
        ),
        (
            f'[health]\ncanary_topic = "{"x" * 256}"',
            "health.canary_topic: must be a topic's name, of at most 255 characters (pillarbox.toml)",
        ),
        (
            'database = ["postgresql://me:hunter2@host/db"]',
            "database (pillarbox.toml): expected text, found list",
        ),
        (
            '[relay]\nidle_longest = "1 ms"',
            "relay.idle_longest: 1 ms is below relay.idle_first, which is 5 ms (pillarbox.toml)",
        ),
        (
            '[relay]\npublish_timeout = "0 s"',
            "relay.publish_timeout: must be longer than zero (pillarbox.toml)",
        ),
        (
            '[retention]\ninbox = "none"',
            'retention.inbox: "none" would forget what was handled, so copies would be handled again (pillarbox.toml)',
        ),
        (
            '[outbox]\nprefix = "a-b"',
            "outbox.prefix: the name must be small letters, digits and underscores, at most 40 (pillarbox.toml)",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_where_it_stands(text: str, line: str) -> None:
    assert refusal(text) == line


def test_a_publish_timeout_that_is_not_below_the_lease_is_refused_by_relays_alone() -> None:
    loaded = load('[relay]\nlease = "10 s"', flags={"relay.publish_timeout": "20 s"})
    with pytest.raises(ConfigError) as refused:
        loaded.check_relay()
    assert str(refused.value) == (
        "relay.publish_timeout: 20 s must be below relay.lease, which is 10 s: shorten the one or lengthen the other"
        " (--set relay.publish_timeout, pillarbox.toml)"
    )
    load('[relay]\nlease = "10.001 s"').check_relay()


def test_a_misspelt_variable_names_the_nearest() -> None:
    assert refusal(environment={"PILLARBOX_DATABSE": "x"}) == (
        "PILLARBOX_DATABSE in the environment is no setting: did you mean PILLARBOX_DATABASE?"
    )


def test_variables_that_are_not_ours_are_left_alone() -> None:
    environment = {"PILLARBOX_SERVICE_HOST": "10.0.0.1", "PILLARBOX_PORT": "tcp://10.0.0.1:80", "PATH": "/bin"}
    assert load(environment=environment) == Settings()


def test_an_unknown_flag_key_names_the_nearest() -> None:
    assert refusal(flags={"relay.bach": "5"}) == (
        "unknown setting 'relay.bach' (--set relay.bach); the nearest known one is 'relay.batch'"
    )


def test_settings_made_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="must be longer than zero"):
        RelaySettings(lease=timedelta(0))


def test_secrets_are_hidden_when_shown() -> None:
    settings = load(
        'database = "postgresql://shop:hunter2@localhost/shop?password=hunter2"\n'
        '[webhooks]\nsigning_secret = "hunter2"\napi_token = "hunter2"\n[kafka]\nlinger = 5'
    )
    shown = {one.key: one.value for one in settings.shown()}
    assert shown["database"] == "postgresql://shop:***@localhost/shop?password=***"
    assert shown["webhooks.signing_secret"] == shown["webhooks.api_token"] == "***"
    assert shown["kafka.linger"] == 5
    assert "hunter2" not in repr(list(settings.shown()))


def test_what_is_shown_can_be_written_back() -> None:
    settings = load('[retention]\npublished = "forever"\narchive = "30 days"\n[health]\ncanary = "90 s"')
    flags = {one.key: str(one.value) for one in settings.shown() if one.value is not None}
    assert Settings.load("pillarbox.toml", environment={}, flags=flags) == settings


def test_the_file_that_init_writes_holds_every_setting_and_changes_none() -> None:
    text = template("sqlite:///shop.db", "stdout:")
    assert load(text) == Settings(database="sqlite:///shop.db", broker="stdout:")
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines() if "A flag wins" not in line)
    everything = load(uncommented.replace("What holds for one topic; without such a table, the values shown here.", ""))
    assert everything == Settings(database="sqlite:///shop.db", broker="stdout:", topics={"order-events": Topic()})
    assert set(everything.origins) >= set(known_keys())


def test_every_setting_has_a_meaning() -> None:
    assert set(MEANINGS) == set(known_keys())


@pytest.mark.parametrize("setting", ["database", "broker"])
@pytest.mark.parametrize("path", ["a\0b.db", "x" * 300 + ".db", "/".join(["x" * 100] * 50)])
def test_a_path_that_no_file_can_have_is_refused(setting: str, path: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: "):
        file_of(setting, parse_url(setting, f"sqlite:///{path}"))
