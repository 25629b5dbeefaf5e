"""Every flag of every command, given a value that cannot be: one line that names it, exit code 2, nothing touched."""

import re
from pathlib import Path

import pytest

from tests.acceptance.test_cli_golden import ALL, ID, contents, fill, typed

URLS = ("shop.db", "oracle://localhost/shop", "sqlite://")
NUMBERS = ("many", "1e400", "-1")
WRONG: dict[str, tuple[str, ...]] = {
    "--database": URLS,
    "--broker": (*URLS, "kafka//localhost"),
    "--config": ("missing.toml", ".", "wrong.toml"),
    "--set": (
        *("relay.batch", "relay.bach=5", "relay.batch=many", "relay.batch=0", "relay.lease=none", "health.listen=9464"),
        *("retention.published=soon", "topic.orders.order=random", "inbox.mode=both"),
    ),
    "--status": ("bogus",),
    "--aggregate": ("order",),
    "--since": ("yesterday", "'99999999 days'"),
    "--until": ("tomorrow", "0001-01-01T00:00+14:00"),
    "--limit": (*NUMBERS, "0"),
    "--last": NUMBERS,
    "--rate": (*NUMBERS, "0"),
    "--events": (*NUMBERS, "0"),
    "--payload": (*NUMBERS, "0"),
    "--aggregates": (*NUMBERS, "0"),
    "--relays": (*NUMBERS, "0"),
    "--seconds": ("many", "-1", "0", "nan", "inf"),
    "--only": ("bogus", "''"),
    "--plot": (".", "/dev/null/x.svg"),
    "--minutes": ("many", "-1", "0", "nan", "inf"),
    "--wait": ("many", "-1", "nan"),
    "--heartbeat": NUMBERS,
    "--seed": ("many", "1e400"),
    "--faults": ("bogus",),
    "--keep": ("/dev/null/x",),
    "--every": ("soon", "'1 ms'", "'-1 s'"),
    "--topic": ("''", "a" * 256),
    "--type": ("''",),
    "--consumer": ("''",),
    "--to": ("''", "a" * 256),
    "--error": ("''",),
    "--group-by": ("topic",),
    "--register": ("localhost", "ftp://localhost", "http://"),
    "--name": ("'Bad Name'", "''"),
    "--option": ("plain", "transforms=mine"),
    "--password-from": ("plain",),
}
ANYTHING = {"--why", "--resume"}
"""A reason may be any text; of an unknown id of a replay the command says that there is none."""
WITH_MORE = {
    ("torture", "--broker"): ("rabbitmq://localhost/x",),
    ("torture", "--database"): ("sqlite:///shop.db",),
    ("init", "--config"): ("pillarbox.toml", "nowhere/new.toml", "."),
    ("relay run", "--set"): ("relay.lease=1s",),
    ("relay once", "--set"): ("relay.lease=1s",),
    ("relay run", "--broker"): ("memory:", "redis://localhost/x", "kafka://", "rabbitmq://:x@h:y/"),
    ("relay once", "--broker"): ("memory:", "nats://localhost:y"),
    ("events list", "--database"): (
        "sqlite:///nowhere/shop.db",
        "sqlite:////.",
        "sqlite:///.",
        "postgresql://me@here@there/shop",
    ),
    ("consume", "--broker"): ("memory:", "stdout:", "https://localhost/x"),
    ("dead retry", "--payload"): ("missing.json", "."),
    ("connector debezium", "--payload"): ("xml",),
    ("connector debezium", "--database"): ("sqlite:///shop.db", "postgresql:///shop"),
}
"""What else is wrong for one command; of `init` and `--payload` instead of what is wrong for others."""
INSTEAD = {("init", "--config"), ("dead retry", "--payload"), ("connector debezium", "--payload")}
POSTGRES = "--database postgresql://me@127.0.0.1:1/shop"
WITH_WORDS = {
    **{path: f"{path} {ID.format(1)}" for path in ("events show", "dead show")},
    **{path: f"{path} {ID.format(2)} --yes" for path in ("dead retry", "dead drop")},
    **{path: f"{path} orders" for path in ("pause", "resume")},
    **{path: f"{path} --inbox" for path in ("events list", "dead list")},
    "replay": "replay --all --yes",
    "bench": "bench --yes",
    "consume": "consume billing:inbox --topic orders",
    "connector debezium": f"connector debezium {POSTGRES}",
    "relay watch": f"relay watch {POSTGRES}",
    "source log": f"source log --yes {POSTGRES}",
    "source slot": f"source slot a_slot --yes {POSTGRES}",
}
"""What a command needs beside the flag; with it alone, it would do something."""
FLAGS = {
    path: [option.opts[0] for option in command.params if option.param_type_name == "option" and not option.is_flag]
    for path, command in ALL.items()
    if path != "doctor"  # its own tests have it: there it is a row of the table
}


@pytest.mark.parametrize("path", FLAGS)
def test_a_value_that_cannot_be_is_one_line_code_2_and_touches_nothing(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    fill()
    (here / "wrong.toml").write_text("[relay]\nbach = 5")
    before = contents(here)
    for flag in FLAGS[path]:
        for value in wrong_values(path, flag):
            code, out, err = typed(f"{WITH_WORDS.get(path, path)} {flag}={value}", capfd, monkeypatch)
            assert (code, out) == (2, ""), (flag, value, err)
            assert re.fullmatch(r"pillarbox: [^\n]+\n", err), (flag, value, err)
            assert names(err, flag, value), (flag, value, err)
            assert contents(here) == before, (flag, value)


def wrong_values(path: str, flag: str) -> tuple[str, ...]:
    if flag in ANYTHING:
        return ()
    more = WITH_MORE.get((path, flag), ())
    return more if (path, flag) in INSTEAD else (*WRONG[flag], *more)


def names(line: str, flag: str, value: str) -> bool:
    """Tell whether a line says which flag, setting or file it means."""
    if flag == "--set":
        return value.partition("=")[0] in line or "--set" in line
    if flag == "--config":
        return value in line
    return flag in line or f"{flag[2:]}:" in line


@pytest.mark.parametrize("words", ["''", "a" * 256])
@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_topic_that_cannot_be_is_refused(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    before = contents(here)
    code, out, err = typed(f"{command} {words}", capfd, monkeypatch)
    assert (code, out, contents(here)) == (2, "", before)
    assert re.fullmatch(r"pillarbox: [^\n]*a topic's name [^\n]+\n", err)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PILLARBOX_DATABASE", "oracle://localhost/shop"),
        ("PILLARBOX_BROKER", "pulsar://localhost"),
        ("PILLARBOX_CONFIG", "missing.toml"),
        ("PILLARBOX_RELAY_BATCH", "many"),
        ("PILLARBOX_RELAY_BACH", "5"),
        ("PILLARBOX_JSON", "perhaps"),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused_alike(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    before = contents(here)
    for command in ("relay once", "status"):
        code, out, err = typed(command, capfd, monkeypatch)
        assert (code, out, contents(here)) == (2, "", before), err
        assert re.fullmatch(r"pillarbox: [^\n]+\n", err), err
