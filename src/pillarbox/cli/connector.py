"""`pillarbox connector debezium`: let Debezium carry the events of this outbox, as our own relay would."""

import json as json_format
from typing import Annotated

import typer

from pillarbox.admin.debezium import PASSWORD, Connector, Payload, preparation
from pillarbox.admin.kafka_connect import KafkaConnect, Registered
from pillarbox.admin.wording import command
from pillarbox.cli.options import Json, with_settings
from pillarbox.cli.output import ExitCode, print_json, print_line, say
from pillarbox.core.secrets import without_secrets
from pillarbox.settings import Settings

app = typer.Typer(help="Let others carry the events.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def connector() -> None:
    """Let others carry the events."""


@app.command()
@with_settings("database")
def debezium(
    *,
    payload: Annotated[
        Payload, typer.Option("--payload", help="The kind of payload that all events have: json, or body for bytes.")
    ] = "json",
    register: Annotated[
        str | None,
        typer.Option(
            "--register", metavar="URL", show_default="print it", help="Kafka Connect, such as http://host:8083."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long the registered connector must run well.")
    ] = 5.0,
    sql: Annotated[
        bool, typer.Option("--sql", show_default="off", help="Print the script that the database needs first.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            show_default="DATABASE_pillarbox_outbox",
            help="Of the connector, its slot and its publication.",
        ),
    ] = None,
    heartbeat: Annotated[
        int,
        typer.Option(
            "--heartbeat",
            metavar="SECONDS",
            min=0,
            show_default="0: none",
            help="Let the slot move on though no event comes; needs the topic __debezium-heartbeat.NAME.",
        ),
    ] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            show_default="none",
            help="A property of the connector, such as database.hostname=db (repeatable).",
        ),
    ] = None,
    password_from: Annotated[
        str | None,
        typer.Option(
            "--password-from",
            metavar="PLACEHOLDER",
            show_default=PASSWORD,
            help="What the worker puts the password in for.",
        ),
    ] = None,
    with_password: Annotated[
        bool,
        typer.Option(
            "--with-password",
            show_default="off",
            help="Write the password out; whoever reads the configuration has it.",
        ),
    ] = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Make a Kafka Connect configuration for Debezium.

    With it Debezium's PostgreSQL connector publishes this outbox to Kafka with the topics, keys and headers that a
    relay writes. It is printed, or registered with Kafka Connect. Exits with 3 if the connector fails as it starts.
    """
    if sql:
        if register is not None:
            raise typer.BadParameter("give one of them", param_hint="'--sql', '--register'")
        _print_script(preparation(settings, name), json)
        return
    connector = Connector.of(
        settings,
        payload=payload,
        name=name,
        password_from=password_from,
        with_password=with_password,
        heartbeat=heartbeat,
        options=dict(map(_split, option or ())),
    )
    if register is None:
        _print_configuration(connector, json)
        say(f"the database needs its publication and its slot first: {command('connector debezium --sql', settings)}")
        _explain_password(connector)
        return
    _tell(connector, KafkaConnect(register).register(connector, wait), without_secrets(register), json)


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter("what was given is not KEY=VALUE, such as poll.interval.ms=1", param_hint="'--option'")
    return key.strip(), value.strip()


def _print_script(script: str, json: bool) -> None:
    if json:
        print_json({"sql": script}, as_it_is=True)
    else:
        print(script, end="")


def _print_configuration(connector: Connector, json: bool) -> None:
    document = {"name": connector.name, "config": dict(connector.config)}
    if json:
        print_json(document, as_it_is=True)
    else:
        print(json_format.dumps(document, indent=2))


def _explain_password(connector: Connector) -> None:
    if connector.has_placeholder:
        say(
            f"database.password is {connector.config['database.password']}: the worker puts it in, if its"
            " config.providers know how; or give --password-from another place, or --with-password"
        )


def _tell(connector: Connector, registered: Registered, where: str, json: bool) -> None:
    """Say what became of the connector; one that failed is no success."""
    if json:
        print_json({"name": connector.name, **registered._asdict()})
    else:
        how = "registered" if registered.created else "updated"
        print_line(f"{how} {connector.name} at {where}; it is {registered.state}")
    if registered.error is not None:
        say(f"pillarbox: {connector.name} failed: {registered.error}")
        raise typer.Exit(ExitCode.UNHEALTHY)
