"""The command line: its habits, its exit codes, and a clear line for every kind of bad input."""

import getpass
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pillarbox import Event

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]
RECORD_KEYS = {
    "position",
    "event_id",
    "status",
    "type",
    "topic",
    "aggregate",
    "created_at",
    "published_at",
    "attempts",
    "last_error",
    "next_try_at",
    "blocked_by",
    "number",
    "idempotency_key",
    "occurred_at",
    "available_at",
    "content_type",
    "headers",
    "consumer",
    "payload",
    "body_base64",
    "traceback",
    "original",
}


@pytest.fixture
def configured(shop: "Shop") -> "Shop":
    """A shop with a settings file and tables, so that commands need no flags."""
    (shop.directory / "pillarbox.toml").write_text(f'database = "{shop.database}"\nbroker = "{shop.broker}"\n')
    shop.migrate("shop.db")
    return shop


# --- bad input


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "database = \n",
            "pillarbox: pillarbox.toml: line 1, column 12: Invalid value; mend it there, or compare with what"
            " `pillarbox init --config example.toml` writes",
        ),
        (
            "[relay]\nbach = 10",
            "pillarbox: unknown setting 'relay.bach' (pillarbox.toml); the nearest known one is 'relay.batch'",
        ),
    ],
)
def test_a_bad_settings_file_is_one_line_and_code_2(shop: "Shop", text: str, line: str) -> None:
    (shop.directory / "pillarbox.toml").write_text(text)
    done = shop.type("pillarbox config show", code=2)
    assert (done.stdout, done.stderr) == ("", f"{line}\n")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "status",
            "database: is not set: give --database sqlite:///shop.db, PILLARBOX_DATABASE, or database = … in"
            " pillarbox.toml, which `pillarbox init` writes",
        ),
        (
            "status --database shop.db",
            "database: what was given is not a URL: write for example sqlite:///shop.db",
        ),
        (
            "status --database sqlite://shop.db",
            "database: 'sqlite://shop.db' names no file: write sqlite:///shop.db or sqlite:////absolute/shop.db",
        ),
        (
            "status --database oracle://shop:hunter2@localhost/shop",
            "database: 'oracle://shop:***@localhost/shop' is of no known kind; known are sqlite, postgresql",
        ),
        (
            "relay once --database sqlite:///shop.db --broker pulsar://localhost",
            "broker: 'pulsar://localhost' is of no known kind; known are sqlite, kafka, rabbitmq, amqp, amqps, redis,"
            " rediss, nats, tls, https, http, stdout",
        ),
        *(
            (
                f"{command} --broker memory:",
                "broker: memory: lives in one process and ends with it, so every event would be thrown away:"
                " use sqlite:///stream.db here, and MemoryBroker() in tests",
            )
            for command in (
                "relay once --database sqlite:///shop.db",
                "relay run --database sqlite:///shop.db",
                "consume billing:inbox --topic t",
            )
        ),
        (
            "relay run --database sqlite:///shop.db",
            "broker: is not set: give --broker sqlite:///stream.db, PILLARBOX_BROKER, or broker = … in pillarbox.toml,"
            " which `pillarbox init` writes",
        ),
        *(
            (
                f"relay {verb}",
                "database, broker: are not set: `pillarbox init` writes a pillarbox.toml with both; or give --database"
                " sqlite:///shop.db --broker sqlite:///stream.db, or PILLARBOX_DATABASE and PILLARBOX_BROKER",
            )
            for verb in ("run", "once")
        ),
        (
            "events list --set relay.bach=5",
            "unknown setting 'relay.bach' (--set relay.bach); the nearest known one is 'relay.batch'",
        ),
        (
            "status --config missing.toml",
            "missing.toml: cannot be read: No such file or directory; `pillarbox init` writes one",
        ),
    ],
)
def test_a_setting_that_is_wrong_is_one_line_and_code_2(shop: "Shop", command: str, line: str) -> None:
    done = shop.type(f"pillarbox {command}", code=2)
    assert (done.stdout, done.stderr) == ("", f"pillarbox: {line}\n")


@pytest.mark.parametrize("command", ["relay once --broker stdout:", "events list"])
def test_a_database_that_is_not_there_yet_is_one_line_and_code_1(shop: "Shop", command: str) -> None:
    done = shop.type(f"pillarbox {command} --database sqlite:///shop.db", code=1)
    line = "there is no database shop.db yet: run `pillarbox migrate up --database sqlite:///shop.db`"
    assert (done.stdout, done.stderr) == ("", f"pillarbox: {line}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("relay run --bogus", "No such option: --bogus"),
        ("bogus", "No such command 'bogus'"),
        ("--database sqlite:///shop.db status", "; it stands behind the command: pillarbox status --database …; `"),
        ("relay --broker stdout: once", "it stands behind the command: pillarbox relay once --broker …;"),
        ("--database sqlite:///shop.db", "it stands behind the command: pillarbox COMMAND --database …;"),
        ("--bogus status", "No such option: --bogus; `pillarbox --help`"),
        ("pause", "Missing argument 'TOPIC'"),
        ("config show --set relay.batch", "'relay.batch' is not KEY=VALUE"),
        ("events list --status bogus", "'bogus' is none of pending, retrying,"),
        ("events list --aggregate order", "'order' is not TYPE:ID, such as order:7"),
        ("events list --since yesterday", "'yesterday' is neither a time"),
        ("events list --limit 0", "Invalid value for '--limit'"),
        ("events list --limit 99999999999999999999", "Invalid value for '--limit'"),
        ("events tail --last 99999999999999999999", "Invalid value for '--last'"),
        ("events list --since '9999999 days'", "'9999999 days' is before the year 1 or after 9999"),
        ("events list --since 0001-01-01T00:00+14:00", "is before the year 1 or after 9999"),
        ("config show --set postgresql://me:hunter2@host/db", "what was given is not KEY=VALUE"),
        ("events list --topic a\udcff", "the argument 'a\\udcff' is not UTF-8"),
        ("pause \udcff", "the argument '\\udcff' is not UTF-8"),
        ("status --database sqlite:///\udcff.db", "is not UTF-8"),
        ("pause ''", "a topic's name cannot be empty"),
        (f"pause {'a' * 256}", "a topic's name has at most 255 characters, this one has 256"),
        (f"consume a:b --topic {'a' * 256}", "a topic's name has at most 255 characters, this one has 256"),
        ("consume .:x --topic a", "'.:x' is not MODULE:INBOX, such as shop.billing:inbox"),
        ("demo --keep /dev/null/x", "/dev/null/x cannot be used: Not a directory"),
        ("events list --consumer billing", "only the inbox has consumers: add --inbox"),
        ("replay --all --rate 0", "Invalid value for '--rate'"),
        ("replay --all --rate fast", "Invalid value for '--rate'"),
        ("replay --all --to ''", "a topic's name cannot be empty"),
        (f"replay --all --to {'a' * 256}", "a topic's name has at most 255 characters, this one has 256"),
        ("dead list --group-by topic", "dead events are grouped by error, not by 'topic'"),
        ("dead retry --error '' --all", "an empty text is in every error: leave it out"),
        ("dead drop --since yesterday", "'yesterday' is neither a time such as"),
        ("audit list --since yesterday", "'yesterday' is neither a time such as"),
        ("dead drop", "name events by their ids, narrow them down, or say --all"),
        ("dead retry", "name events by their ids, narrow them down, or say --all"),
        ("consume billing --topic a", "'billing' is not MODULE:INBOX, such as shop.billing:inbox"),
        ("consume billing:inbox", "Missing option '--topic'"),
    ],
)
def test_wrong_usage_is_code_2(shop: "Shop", command: str, words: str) -> None:
    done = shop.type(f"pillarbox {command}", code=2)
    assert done.stdout == ""
    assert words in done.stderr
    assert "hunter2" not in done.stderr


def test_a_database_that_is_none_is_refused_by_every_command(shop: "Shop") -> None:
    (shop.directory / "shop.db").write_text("this is a letter, not a database, and long enough to be taken for one")
    for command in ("migrate up", "migrate status", "relay once --broker stdout:", "dead list"):
        done = shop.type(f"pillarbox {command} --database {shop.database}", code=1)
        assert done.stderr == "pillarbox: shop.db is not an SQLite database; look at the path in the setting database\n"


def test_debug_shows_where_an_error_arose(shop: "Shop") -> None:
    for variable, flag in (({}, "--debug "), ({"PILLARBOX_DEBUG": "1"}, "")):
        done = subprocess.run(
            [sys.executable, "-m", "pillarbox", *flag.split(), "status"],
            cwd=shop.directory,
            env=shop.environment | variable,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert "pillarbox.errors.ConfigError: database: is not set" in done.stderr


def test_debug_may_be_off_in_the_environment(shop: "Shop") -> None:
    assert shop.type("pillarbox status", code=2, PILLARBOX_DEBUG="0").stderr.startswith("pillarbox: database: is not")


UNEXPECTED = """
import sys
from pillarbox.cli import app
@app.app.command("stumble")
def stumble(): raise KeyError("redis://:hunter2@host")
sys.argv[1:] = {arguments}
app.run()
"""


def test_an_error_that_nobody_expected_is_one_line_unless_debug_is_on(shop: "Shop") -> None:
    for arguments, starts in ((["stumble"], "pillarbox: unexpected KeyError: "), (["--debug", "stumble"], "Traceback")):
        code = UNEXPECTED.format(arguments=arguments)
        done = subprocess.run(
            [sys.executable, "-c", code], env=shop.environment, capture_output=True, text=True, cwd=shop.directory
        )
        assert done.returncode == 1
        assert done.stderr.startswith(starts)
    done = subprocess.run(
        [sys.executable, "-c", UNEXPECTED.format(arguments=["stumble"])],
        env=shop.environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr.endswith("; run again with --debug and report it\n")
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("status >&-", 1, "pillarbox: the output cannot be written: not writable\n"),
        ("status 2>&-", 3, ""),
        ("status >&- 2>&-", 1, ""),
        ("events list --json >&-", 1, "pillarbox: the output cannot be written: not writable\n"),
        ("relay once --broker stdout: >&-", 1, "nothing is lost"),
        pytest.param(
            "status > /dev/full",
            1,
            "pillarbox: the output cannot be written: No space left on device\n",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a full device"),
        ),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(configured: "Shop", line: str, code: int, said: str) -> None:
    configured.placed()
    done = _in_a_shell(configured, line)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert said in done.stderr
    assert configured.json("pillarbox events list --json")[0]["status"] == "pending"


@pytest.mark.parametrize(
    "line", ["events list --limit 300", "events list --limit 300 --json", "events tail --last 300", "config show"]
)
def test_a_reader_that_goes_away_ends_a_command_quietly(configured: "Shop", line: str) -> None:
    configured.add(*(Event("OrderPlaced", {"text": "x" * 1000}) for _ in range(300)))
    done = _in_a_shell(configured, f"{line} | head -c 1")
    assert (len(done.stdout), done.stderr) == (1, "")


def test_the_relay_ends_when_nobody_reads_its_output(configured: "Shop") -> None:
    configured.add(*(Event("OrderPlaced", {"text": "x" * 1000}) for _ in range(300)))
    done = _in_a_shell(configured, "relay run --set relay.batch=10 --broker stdout: | head -c 1; echo ${PIPESTATUS[0]}")
    assert done.stdout[1:] == "1\n"
    assert "pillarbox: stopped, because nobody reads its output any more: " in done.stderr.splitlines()[-1]


def _in_a_shell(shop: "Shop", line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m pillarbox {line}"],
        cwd=shop.directory,
        env=shop.environment,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_an_encoding_that_lacks_letters_gets_backslashes_and_json_stays_json(configured: "Shop") -> None:
    configured.add(Event("Grüße", {"text": "ü"}))
    assert "Gr\\xfc\\xdfe" in configured.type("pillarbox events list", PYTHONIOENCODING="ascii").stdout
    listed = configured.type("pillarbox events list --json", PYTHONIOENCODING="ascii").stdout
    assert json.loads(listed)[0]["type"] == "Grüße"


def test_ctrl_c_while_it_starts_is_code_130_and_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from pillarbox.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from pillarbox.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "pillarbox: the command line needs the extra 'cli': pip install 'pillarbox[cli]'\n"


# --- settings


def test_init_writes_a_file_that_the_other_commands_read(shop: "Shop") -> None:
    assert shop.json("pillarbox init --json --database sqlite:///a.db --broker stdout:") == {"file": "pillarbox.toml"}
    shown = {one["key"]: one for one in shop.json("pillarbox config show --json")}
    assert shown["database"] == {"key": "database", "value": "sqlite:///a.db", "origin": "pillarbox.toml"}
    assert shown["relay.batch"] == {"key": "relay.batch", "value": 1000, "origin": "default"}


@pytest.mark.parametrize("flag", ["--database foo", "--database mysql:///shop", "--broker foo:", "--broker sqlite://"])
def test_init_refuses_what_the_next_command_would(shop: "Shop", flag: str) -> None:
    said = shop.type(f"pillarbox init {flag}", code=2).stderr
    assert said.startswith(f"pillarbox: {flag[2:].split()[0]}: ")
    assert not (shop.directory / "pillarbox.toml").exists()


def test_init_writes_over_a_file_only_by_force(shop: "Shop") -> None:
    path = shop.directory / "pillarbox.toml"
    path.write_text("# mine")
    done = shop.type("pillarbox init", code=2)
    assert done.stderr == "pillarbox: pillarbox.toml is there already: --force writes over it\n"
    assert path.read_text() == "# mine"
    shop.type("pillarbox init --force")
    assert "[relay]" in path.read_text()


def test_a_file_with_a_password_is_private(shop: "Shop") -> None:
    path = shop.directory / "pillarbox.toml"
    path.write_text("# everybody may read this")
    path.chmod(0o644)
    for flags in ("--force", "--config other.toml"):
        done = shop.type(f"pillarbox init {flags} --database postgresql://me:hunter2@host/db")
        assert "hunter2" not in done.stdout + done.stderr
    assert [(shop.directory / name).stat().st_mode & 0o777 for name in ("pillarbox.toml", "other.toml")] == [0o600] * 2


def test_config_show_says_where_each_value_came_from_and_hides_secrets(shop: "Shop") -> None:
    (shop.directory / "pillarbox.toml").write_text('database = "sqlite:///file.db"\n[webhooks]\nsecret = "hunter2"')
    done = shop.type(
        "pillarbox config show --broker rabbitmq://shop:hunter2@host/ --set relay.batch=5",
        PILLARBOX_RELAY_RETRIES="2",
        PILLARBOX_DATABASE="sqlite:///environment.db",
    )
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert lines["database"] == ["sqlite:///environment.db", "PILLARBOX_DATABASE"]
    assert lines["broker"] == ["rabbitmq://shop:***@host/", "--broker"]
    assert lines["relay.batch"] == ["5", "--set", "relay.batch"]
    assert lines["relay.retries"] == ["2", "PILLARBOX_RELAY_RETRIES"]
    assert lines["webhooks.secret"] == ["***", "pillarbox.toml"]
    assert "hunter2" not in done.stdout + done.stderr


# --- tables


def test_migrate_tells_what_it_did_and_checks(shop: "Shop") -> None:
    url = f"--database {shop.database}"
    assert shop.json(f"pillarbox migrate status --json {url}") == {"version": 0, "needed": 1}
    none = {"version": 0, "needed": 1, "missing": [], "fine": False}
    assert shop.json(f"pillarbox migrate check --json {url}", code=3) == none
    assert shop.json(f"pillarbox migrate up --json {url}") == {"applied": [1], "version": 1}
    assert shop.json(f"pillarbox migrate up --json {url}") == {"applied": [], "version": 1}
    fine = {"version": 1, "needed": 1, "missing": [], "fine": True}
    assert shop.json(f"pillarbox migrate check --json {url}") == fine


def test_a_table_that_somebody_dropped_is_named_by_every_command(migrated: "Shop") -> None:
    url = f"--database {migrated.database}"
    with closing(sqlite3.connect(migrated.directory / "shop.db")) as connection:
        connection.execute("DROP TABLE pillarbox_parked")
    checked = migrated.json(f"pillarbox migrate check --json {url}", code=3)
    assert (checked["missing"], checked["fine"]) == (["the table pillarbox_parked"], False)
    for command, code in {"migrate check": 3, "migrate up": 1, "relay once --broker stdout:": 1, "status": 3}.items():
        done = migrated.type(f"pillarbox {command} {url}", code=code)
        said = done.stdout + done.stderr
        assert "the table pillarbox_parked is missing" in said
        assert "restore it from a backup" in said
        assert "migrate up" not in said


def test_the_script_that_is_printed_makes_the_tables(shop: "Shop") -> None:
    script = shop.type(f"pillarbox migrate sql --database {shop.database} --set outbox.prefix=mail_").stdout
    assert not (shop.directory / "shop.db").exists()
    connection = sqlite3.connect(shop.directory / "shop.db")
    connection.executescript(script)
    connection.close()
    shop.type(f"pillarbox migrate check --database {shop.database} --set outbox.prefix=mail_")
    assert shop.json(f"pillarbox migrate sql --json --database {shop.database} --set outbox.prefix=mail_")["sql"] == (
        script.removesuffix("\n")
    )


# --- looking at events


def test_events_are_listed_as_json_with_fixed_keys(configured: "Shop") -> None:
    json_id, bytes_id = configured.add(
        Event("OrderPlaced", {"total": 42}, aggregate=("order", 7), headers={"tenant": "a"}),
        Event("Scan", b"\x00\x01", content_type="application/octet-stream"),
    )
    newest, oldest = configured.json("pillarbox events list --json")
    assert set(newest) == set(oldest) == RECORD_KEYS
    assert (oldest["event_id"], oldest["payload"], oldest["body_base64"]) == (json_id, {"total": 42}, None)
    assert (oldest["status"], oldest["aggregate"], oldest["headers"]) == ("pending", ["order", "7"], {"tenant": "a"})
    assert (newest["event_id"], newest["payload"], newest["body_base64"]) == (bytes_id, None, "AAE=")
    assert newest["aggregate"] is None


def test_the_reference_names_the_keys_of_an_event_in_json() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
    table = page.partition("## An event in JSON\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == RECORD_KEYS


def test_a_list_of_what_was_added_has_no_consumers(configured: "Shop") -> None:
    configured.placed()
    assert "CONSUMER" not in configured.type("pillarbox events list").stdout


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--type OrderPaid", [1]),
        ("--topic order-events --oldest-first", [0, 1]),
        ("--topic order-events", [1, 0]),
        ("--aggregate user:1", [2]),
        ("--limit 1", [2]),
        ("--status pending --since '5 min'", [2, 1, 0]),
    ],
)
def test_flags_narrow_a_list_down(configured: "Shop", flags: str, found: list[int]) -> None:
    ids = configured.add(
        Event("OrderPlaced", {}, aggregate=("order", 1)),
        Event("OrderPaid", {}, aggregate=("order", 1)),
        Event("UserJoined", {}, aggregate=("user", 1)),
    )
    listed = configured.json(f"pillarbox events list --json {flags}")
    assert [ids.index(one["event_id"]) for one in listed] == found


def test_a_list_that_is_cut_off_says_so_beside_its_data(configured: "Shop") -> None:
    configured.add(*(Event("OrderPlaced", {}, aggregate=("order", n)) for n in range(101)))
    more = "there are more than the {} that are shown; a larger --limit shows more of them\n"
    done = configured.type("pillarbox events list")
    assert (len(done.stdout.splitlines()), done.stderr) == (1 + 100, more.format("newest 100"))
    for flags, shown, line in (
        ("--json", 100, more.format("newest 100")),
        ("--oldest-first --limit 3 --type OrderPlaced --json", 3, more.format("oldest 3")),
        ("--all --limit 100 --topic order-events --json", 100, more.format("newest 100")),
        ("--limit 101 --json", 101, ""),
    ):
        done = configured.type(f"pillarbox events list {flags}")
        assert (len(json.loads(done.stdout)), done.stderr) == (shown, line)


def test_a_list_without_any_event_says_how_events_come_there(configured: "Shop") -> None:
    said = configured.type("pillarbox events list --limit 5", code=4)
    assert said.stderr.startswith("no events are there yet, or none any more: the application adds them, outbox.add(")
    said = configured.type("pillarbox events list --inbox --json", code=4)
    assert (said.stdout, said.stderr[:30]) == ("[]\n", "no events stand in an inbox of")
    assert configured.type("pillarbox events list --type Ping", code=4).stderr == "no events match\n"


@pytest.mark.parametrize(
    "command",
    [
        "events list --status dead",
        "events list --until '1 h'",
        "events list --inbox",
        "events show 00000000-0000-7000-8000-000000000000",
        "dead list",
        "dead list --inbox",
        "dead list --group-by error",
        "dead list --group-by error --inbox",
        "dead show 00000000-0000-7000-8000-000000000000",
        "dead retry --all",
        "dead drop 00000000-0000-7000-8000-000000000000",
        "dead retry --error refused",
        "dead drop --error refused",
        "audit list --since 2999-01-01",
        "resume order-events",
    ],
)
def test_nothing_matched_is_code_4(configured: "Shop", command: str) -> None:
    configured.placed()
    done = configured.type(f"pillarbox {command}", code=4)
    assert done.stdout == ""
    assert done.stderr.startswith("no ")


def test_an_empty_list_is_an_empty_array(configured: "Shop") -> None:
    assert configured.json("pillarbox events list --json", code=4) == []


def test_show_tells_everything_about_one_event(configured: "Shop") -> None:
    id = configured.placed()
    text = configured.type(f"pillarbox events show {id}").stdout
    assert re.search(rf"event id +{id}", text)
    assert re.search(r"aggregate +order 7", text)
    assert re.search(r'payload +\{"order_id": 7\}', text)
    assert configured.json(f"pillarbox events show {id} --json")["event_id"] == id


def test_a_table_in_a_pipe_is_not_cut_off(configured: "Shop") -> None:
    configured.add(Event("A" * 200, {}, aggregate=("order", "b" * 200)))
    text = configured.type("pillarbox events list").stdout
    assert "A" * 200 in text
    assert "b" * 200 in text


def test_tail_follows_and_stops_with_ctrl_c(configured: "Shop") -> None:
    first = configured.placed()
    process = subprocess.Popen(
        [sys.executable, "-m", "pillarbox", "events", "tail", "--json"],
        cwd=configured.directory,
        env=configured.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event_id"] == first
        second = configured.placed(8)
        assert json.loads(process.stdout.readline())["event_id"] == second
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=30)
        assert (process.returncode, talk) == (0, "")
    finally:
        process.kill()
        process.communicate()


# --- relaying


def test_relay_once_says_what_it_did(configured: "Shop") -> None:
    ids = [configured.placed(), configured.placed(8)]
    assert configured.type("pillarbox relay once").stderr == "published 2 events\n"
    assert configured.json("pillarbox relay once --json") == {"published": 0}
    assert configured.received() == ids


def test_relay_once_names_the_pause_that_made_it_leave_events(configured: "Shop") -> None:
    configured.type("pillarbox pause order-events --why 'the shop moves house'", LOGNAME="ann")
    configured.placed()
    summary, warning = configured.type("pillarbox relay once").stderr.splitlines()
    assert re.fullmatch(
        r"\S+ \S+ WARNING topic order-events is paused by ann@\S+ since \S+ \S+ UTC \(the shop moves house\): its"
        r" events were left; `pillarbox resume order-events` lets it flow again",
        warning,
    )
    assert summary == "published 0 events"


def test_relay_once_tells_of_a_pause_in_a_json_line(configured: "Shop") -> None:
    configured.type("pillarbox pause order-events")
    configured.placed()
    done = configured.type("pillarbox relay once --json")
    assert json.loads(done.stdout) == {"published": 0}
    assert json.loads(done.stderr)["text"].startswith("topic order-events is paused by ")


def test_relay_once_says_how_many_wait_for_their_time(configured: "Shop") -> None:
    configured.add(Event("OrderPlaced", {}, topic="order-events", available_at=datetime.now(UTC) + timedelta(hours=1)))
    for _ in range(2):  # read off the log; found in the parking lot
        summary, warning = configured.type("pillarbox relay once").stderr.splitlines()
        assert summary == "published 0 events"
        assert warning.endswith(" WARNING left: 1 delayed; `pillarbox status` says why")


def test_relay_once_says_nothing_of_a_pause_behind_which_nothing_waits(configured: "Shop") -> None:
    configured.type("pillarbox pause order-events")
    assert configured.type("pillarbox relay once").stderr == "published 0 events\n"


@pytest.mark.parametrize("command", ["events show {}", "dead show {}", "dead retry {}", "dead drop {}"])
def test_a_shortened_id_is_told_to_be_too_short(configured: "Shop", command: str) -> None:
    id = configured.placed()
    short, whole = (configured.type(f"pillarbox {command.format(one)}", code=4) for one in (id[:8], id[:-1] + "x"))
    assert "an id must be given in full" in short.stderr
    assert "in full" not in whole.stderr


def test_relay_once_says_nothing_of_a_pause_that_has_ended(configured: "Shop") -> None:
    configured.type("pillarbox pause order-events")
    configured.placed()
    configured.type("pillarbox resume order-events")
    assert configured.type("pillarbox relay once").stderr == "published 1 event\n"


def test_events_printed_to_stdout_are_one_json_line_each(configured: "Shop") -> None:
    id = configured.placed()
    done = configured.type("pillarbox relay once --json --broker stdout:")
    event, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert id in json.dumps(event)
    assert summary == {"published": 1}


def test_relay_once_fails_when_the_broker_is_away(configured: "Shop") -> None:
    configured.placed()
    (configured.directory / "stream.db").mkdir()
    done = configured.type("pillarbox relay once", code=1)
    assert "the broker's file stream.db cannot be used now: unable to open database file" in done.stderr
    assert configured.json("pillarbox events list --json")[0]["status"] == "pending"


def test_relay_run_logs_json_lines_and_hides_secrets(configured: "Shop", until: Until) -> None:
    id = configured.placed()
    with configured.running("pillarbox relay run --json") as process:
        until(lambda: configured.received() == [id])
        process.send_signal(signal.SIGTERM)
        data, talk = process.communicate(timeout=30)
    lines = [json.loads(line) for line in talk.splitlines()]
    assert data == ""
    assert lines[0]["text"] == "relays from sqlite:///shop.db to sqlite:///stream.db"
    assert [line["moment"] for line in lines] == [None, "lanes taken", "lanes released", None]


# --- what destroys


@pytest.fixture
def dead(configured: "Shop") -> tuple["Shop", list[str]]:
    """Two dead events of two orders."""
    ids = [configured.placed(1), configured.placed(2)]
    code = (
        "import asyncio, pillarbox\n"
        "def publish(messages): raise pillarbox.PublishRejected('refused')\n"
        "asyncio.run(pillarbox.Relay(database='sqlite:///shop.db', publish=publish).run_once())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=configured.directory, check=True, capture_output=True)
    return configured, ids


def test_dead_events_are_listed_and_shown_with_why(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    listed = shop.json("pillarbox dead list --json")
    assert {one["event_id"] for one in listed} == set(ids)
    assert all(set(one) == RECORD_KEYS and one["last_error"] == "refused" for one in listed)
    assert "refused" in shop.type(f"pillarbox dead show {ids[0]}").stdout
    assert shop.json(f"pillarbox dead show {ids[0]} --json")["status"] == "dead"


def test_dead_events_are_grouped_by_their_error(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    [group] = shop.json("pillarbox dead list --group-by error --json")
    assert set(group) == {"error", "events", "first_at", "last_at", "example"}
    assert (group["error"], group["events"], group["example"]) == ("refused", 2, ids[1])
    assert group["first_at"] <= group["last_at"]
    head, line = shop.type("pillarbox dead list --group-by error").stdout.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == ["EVENTS", "FIRST SEEN (UTC)", "LAST SEEN (UTC)", "EXAMPLE", "ERROR"]
    assert re.fullmatch(rf"2 +\S+ \S+ +\S+ \S+ +{ids[1]} +refused *", line)
    assert shop.json("pillarbox dead list --group-by error --type Other --json", code=4) == []


def test_relay_once_says_that_events_were_left(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    summary, warning = shop.type("pillarbox relay once").stderr.splitlines()
    assert summary == "published 0 events"
    assert re.fullmatch(rf"\S+ \S+ WARNING left: {len(ids)} dead(, \d+ blocked)?; `pillarbox status` says why", warning)


def test_without_anybody_to_ask_the_flag_is_named(dead: tuple["Shop", list[str]]) -> None:
    shop, _ = dead
    assert "--yes does not ask" in shop.type("pillarbox dead retry --all", code=1).stderr
    assert len(shop.json("pillarbox dead list --json")) == 2


def test_dropping_says_how_many_and_asks(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    done = shop.type("pillarbox dead drop --all", code=1, answer="n\n")
    assert done.stderr.startswith("2 dead events will be dropped\nGo on? [y/N] ")
    assert len(shop.json("pillarbox dead list --json")) == 2
    done = shop.type(f"pillarbox dead drop {ids[0]}", answer="y\n")
    assert done.stderr.startswith("1 dead event will be dropped\n")
    assert done.stdout == "dropped 1 event\n"
    assert [one["event_id"] for one in shop.json("pillarbox dead list --json")] == [ids[1]]
    assert shop.json(f"pillarbox events show {ids[0]} --json")["status"] == "dropped"


def test_without_anybody_to_ask_nothing_is_dropped(dead: tuple["Shop", list[str]]) -> None:
    shop, _ = dead
    shop.type("pillarbox dead drop --all", code=1, answer="")
    assert len(shop.json("pillarbox dead list --json")) == 2


def test_a_dry_run_only_says_how_many(dead: tuple["Shop", list[str]]) -> None:
    shop, _ = dead
    for verb, done_to in (("drop", "dropped"), ("retry", "retried")):
        done = shop.type(f"pillarbox dead {verb} --all --dry-run --json")
        assert done.stderr == f"2 dead events would be {done_to}\n"
        assert json.loads(done.stdout) == {done_to: 0, "matched": 2, "dry_run": True}
    assert len(shop.json("pillarbox dead list --json")) == 2


@pytest.mark.parametrize(
    ("flags", "matched"),
    [
        ("--error refu", 2),
        ("--error Refused", 0),
        ("--error refused --aggregate order:2", 1),
        ("--since '1 h'", 2),
        ("--until '1 h'", 0),
        ("--until 2999-01-01", 2),
        ("--error refused --since 2999-01-01", 0),
    ],
)
@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_what_is_retried_or_dropped_is_narrowed_down(
    dead: tuple["Shop", list[str]], verb: str, flags: str, matched: int
) -> None:
    shop, _ = dead
    done = shop.type(f"pillarbox dead {verb} {flags} --dry-run --json", code=0 if matched else 4)
    assert matched == json.loads(done.stdout)["matched"]
    assert len(shop.json(f"pillarbox dead list {flags} --json", code=0 if matched else 4)) == matched


def test_the_audit_says_who_did_what_when_and_to_how_many(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    shop.type("pillarbox dead retry --error refused --dry-run")
    shop.type(f"pillarbox dead drop {ids[0]} --yes")
    shop.type("pillarbox dead retry --error 'refus' --yes")
    retried, dropped, made = shop.json("pillarbox audit list --json")
    assert set(retried) == {"at", "who", "what", "count"}
    assert (retried["who"], retried["what"], retried["count"]) == (who, "retry status=dead error='refus'", 1)
    assert (dropped["what"], dropped["count"]) == (f"drop ids={ids[0]} status=dead", 1)
    assert (made["who"], made["what"], made["count"]) == (who, "migrate up version=1", 0)
    assert shop.json("pillarbox audit list --limit 1 --json") == [retried]
    head, first, *_ = shop.type("pillarbox audit list").stdout.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == ["WHEN (UTC)", "WHO", "COUNT", "WHAT"]
    assert re.fullmatch(rf"\S+ \S+ +{who} +1 +retry status=dead error='refus' *", first)
    assert shop.json("pillarbox audit list --since 2999-01-01 --json", code=4) == []


def test_a_dead_event_is_retried_with_what_a_file_holds(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    (shop.directory / "mended.json").write_text('{"order_id": 1, "mended": true}\n')
    edit = f"pillarbox dead retry {ids[0]} --payload mended.json"
    assert shop.type(f"{edit} --dry-run").stderr == "1 dead event would be retried with another payload\n"
    assert shop.json(f"pillarbox events show {ids[0]} --json")["status"] == "dead"
    refused = shop.type(edit, code=1, answer="no\n")
    assert refused.stderr.startswith("1 dead event will be retried with another payload\nGo on? [y/N] ")
    assert shop.json(f"pillarbox events show {ids[0]} --json")["status"] == "dead"
    done = shop.type(f"{edit} --yes --json")
    assert done.stderr == "1 dead event will be retried with another payload\n"
    assert json.loads(done.stdout) == {"retried": 1, "matched": 1, "dry_run": False}
    seen = shop.json(f"pillarbox events show {ids[0]} --json")
    assert (seen["status"], seen["payload"], seen["original"]) == (
        "retrying",
        {"order_id": 1, "mended": True},
        {"order_id": 1},
    )
    assert re.search(
        r'payload before it was edited +\{"order_id": 1\}', shop.type(f"pillarbox events show {ids[0]}").stdout
    )
    assert shop.json("pillarbox audit list --json")[0]["what"] == f"edit ids={ids[0]} status=dead"
    sent = shop.type("pillarbox relay once --broker stdout:").stdout
    assert [json.loads(line)["headers"]["id"] for line in sent.splitlines()] == [ids[0]]
    assert '"mended": true' in sent or '\\"mended\\": true' in sent


def parked_and_audited(shop: "Shop") -> list[list[tuple[object, ...]]]:
    connection = sqlite3.connect(shop.directory / "shop.db")
    rows = [connection.execute(f"SELECT * FROM pillarbox_{table}").fetchall() for table in ("parked", "audit")]
    connection.close()
    return rows


@pytest.mark.parametrize(
    ("flags", "content", "words"),
    [
        ("{0} --payload mended.json", b"{", "it is not JSON"),
        ("{0} --payload mended.json", b"", "it is not JSON"),
        ("{0} --payload mended.json", b"[NaN]", "NaN is not JSON"),
        ("{0} --payload mended.json", b"\xff", "payload of 'OrderPlaced'"),
        ("{0} --payload mended.json", b'"' + b"a" * 262_143 + b'"', "262,145 bytes, at most 262,144"),
        ("{0} --payload other.json", b"{}", "other.json cannot be read: No such file or directory"),
        ("{0} --payload .", b"{}", "cannot be read: Is a directory"),
        ("{0} {1} --payload mended.json", b"{}", "one event is edited at a time: name its id"),
        ("--all --payload mended.json", b"{}", "one event is edited at a time: name its id"),
        ("{0} --inbox --payload mended.json", b"{}", "what was received cannot be edited"),
        ("{0} --edit --payload mended.json", b"{}", "give a file or use the editor, not both"),
        ("{0} --edit", b"{}", "neither VISUAL nor EDITOR is set"),
    ],
)
def test_what_cannot_be_put_into_an_event_is_refused_and_touches_nothing(
    dead: tuple["Shop", list[str]], flags: str, content: bytes, words: str
) -> None:
    shop, ids = dead
    (shop.directory / "mended.json").write_bytes(content)
    before = parked_and_audited(shop)
    done = shop.type(f"pillarbox dead retry {flags.format(*ids)} --yes", code=2, VISUAL="", EDITOR="")
    assert done.stdout == ""
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert parked_and_audited(shop) == before


def test_a_dead_event_is_edited_in_the_persons_editor(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    edit = f"pillarbox dead retry {ids[0]} --edit --yes"
    unchanged = shop.type(edit, code=1, VISUAL="", EDITOR="true")
    assert unchanged.stderr.startswith("nothing was changed, so nothing is retried\n")
    failed = shop.type(edit, code=2, VISUAL="", EDITOR="false")
    assert "the editor 'false' failed" in failed.stderr
    shop.type(edit, VISUAL="", EDITOR="sed -i s/1/5/")
    seen = shop.json(f"pillarbox events show {ids[0]} --json")
    assert (seen["payload"], seen["original"]) == ({"order_id": 5}, {"order_id": 1})


def test_retrying_asks_for_one_event_as_for_many(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    retry = f"pillarbox dead retry {ids[0]}"
    asked = shop.type(retry, code=1)
    assert asked.stderr.startswith("1 dead event will be retried\nGo on? [y/N] nobody is there to answer: --yes")
    assert shop.json(f"pillarbox events show {ids[0]} --json")["status"] == "dead"
    assert shop.type(retry, answer="y\n").stdout == "retried 1 event\n"


def test_yes_does_not_ask(dead: tuple["Shop", list[str]]) -> None:
    shop, ids = dead
    done = shop.type("pillarbox dead retry --topic order-events --yes --json")
    assert json.loads(done.stdout) == {"retried": 2, "matched": 2, "dry_run": False}
    shop.type("pillarbox relay once")
    assert sorted(shop.received()) == sorted(ids)


# --- topics


def test_pause_and_resume_answer_in_json_too(configured: "Shop") -> None:
    pause = "pillarbox pause order-events --json"
    assert configured.json(pause) == {"topic": "order-events", "paused": True, "changed": True}
    assert configured.json(pause) == {"topic": "order-events", "paused": True, "changed": False}
    resume = "pillarbox resume order-events --json"
    assert configured.json(resume) == {"topic": "order-events", "paused": False, "changed": True}
    assert configured.json(resume, code=4) == {"topic": "order-events", "paused": False, "changed": False}


def test_the_command_that_ends_a_pause_can_be_run_as_it_stands(migrated: "Shop") -> None:
    said = migrated.type(f"pillarbox pause 'my orders' --database {migrated.database}").stdout
    assert said == (
        "my orders is paused; `pillarbox resume 'my orders' --database sqlite:///shop.db` lets it flow again\n"
    )
    migrated.type(said.split("`")[1])


@pytest.mark.parametrize(
    ("again", "nothing_changed"),
    [
        ("", ""),
        ("--why 'the shop moves house'", ""),
        ("--why 'stocktaking'", ": nothing was changed, your reason was not noted"),
    ],
)
def test_a_topic_that_is_paused_already_keeps_its_first_reason(
    configured: "Shop", again: str, nothing_changed: str
) -> None:
    configured.type("pillarbox pause order-events --why 'the shop moves house'", LOGNAME="ann")
    first = configured.json("pillarbox status --json")["stats"]["pauses"]
    said = configured.type(f"pillarbox pause order-events {again}", LOGNAME="bob").stdout
    assert re.fullmatch(
        r"order-events is paused already, by ann@\S+ since \S+ \S+ UTC \(the shop moves house\)"
        rf"{nothing_changed}; `pillarbox resume order-events` lets it flow again\n",
        said,
    )
    assert configured.json("pillarbox status --json")["stats"]["pauses"] == first


# --- colour


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_colour_unless_it_is_unwanted(
    configured: "Shop", environment: dict[str, str], coloured: bool
) -> None:
    configured.placed()
    assert ("\x1b[3" in _on_a_terminal(configured, environment)) is coloured


def test_a_pipe_has_no_colour(configured: "Shop") -> None:
    configured.placed()
    assert "\x1b" not in configured.type("pillarbox status", code=3).stdout


def _on_a_terminal(shop: "Shop", environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in shop.environment.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pillarbox", "status"],
        cwd=shop.directory,
        env=inherited | {"TERM": "xterm-256color"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    try:
        while select.select([ours], [], [], 30)[0]:
            text += os.read(ours, 4096)
    except OSError:  # Linux says that the other end was closed
        pass
    finally:
        os.close(ours)
        assert process.wait(30) == 3
    return text.decode()


def test_the_version_is_printed(shop: "Shop") -> None:
    assert shop.type("pillarbox --version").stdout == "pillarbox 0.1.0.dev0\n"


def test_the_installed_command_is_the_same(shop: "Shop") -> None:
    command = Path(sys.executable).with_name("pillarbox")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == shop.type("pillarbox --version").stdout


@pytest.mark.parametrize("depth", [970, 1100])
def test_an_event_that_is_nested_deeply_is_shown_as_it_stands(configured: "Shop", depth: int) -> None:
    deep = "[" * depth + "]" * depth
    with sqlite3.connect(configured.directory / "shop.db") as database:
        sql = "INSERT INTO pillarbox_outbox (event_type, topic, payload, headers) VALUES ('Deep', 't', ?, ?)"
        database.execute(sql, (deep, f'{{"a": {deep}}}'))
    [shown] = configured.json("pillarbox events list --json")
    assert shown["payload"] == deep
    assert deep in "".join(shown["headers"].values())
    assert deep in configured.type(f"pillarbox events show {shown['event_id']}").stdout


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("relay run {}", 2),
        ("relay once {}", 2),
        ("status {}", 2),
        ("{}", 2),
        ("relay {}", 2),
        ("consume {}", 2),
        ("consume {} --topic t", 2),
        ("--debug consume {} --topic t", 2),
        ("events show {}", 4),
        ("dead show {}", 4),
        ("dead retry {}", 4),
        ("pause {}", 0),
        ("resume {}", 4),
        ("events list --aggregate {}", 4),
        ("events list --since {}", 2),
        ("events list --status {}", 2),
    ],
)
def test_a_url_in_the_wrong_place_does_not_say_its_password(configured: "Shop", command: str, code: int) -> None:
    line = command.format("'postgresql://shop:hunter2 3@localhost/shop'")
    done = subprocess.run(
        [sys.executable, "-m", "pillarbox", *shlex.split(line)],
        cwd=configured.directory,
        env=configured.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
