"""`pillarbox migrate`: the tables."""

import asyncio
from typing import Annotated

import typer

from pillarbox.admin.wording import command
from pillarbox.cli.options import Json, with_settings
from pillarbox.cli.output import ExitCode, print_json, print_line, say
from pillarbox.ports import SchemaStatus
from pillarbox.settings import Settings
from pillarbox.wiring import open_admin

app = typer.Typer(help="Make, check and show the tables.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@with_settings("database")
def up(*, settings: Settings, json: Json = False) -> None:
    """Make the tables, or bring them up to date."""

    async def migrate() -> tuple[list[int], SchemaStatus]:
        async with open_admin(settings) as admin:
            return list(await admin.migrate()), await admin.schema()

    applied, schema = asyncio.run(migrate())
    if json:
        print_json({"applied": applied, "version": schema.version})
    elif applied:
        print_line(f"the tables are at version {schema.version} now")
    else:
        print_line(f"the tables are at version {schema.version} already")


@app.command()
@with_settings("database")
def status(*, settings: Settings, json: Json = False) -> None:
    """Show which version the tables have."""
    schema = _schema(settings)
    if json:
        print_json({"version": schema.version, "needed": schema.needed})
    else:
        print_line(_standing(schema, settings))


@app.command()
@with_settings("database")
def check(*, settings: Settings, json: Json = False) -> None:
    """Check the tables, for deployments.

    Exits with 3 unless they are as this release needs them.
    """
    schema = _schema(settings)
    if json:
        print_json(
            {
                "version": schema.version,
                "needed": schema.needed,
                "missing": list(schema.missing),
                "fine": schema.fits,
            }
        )
    elif schema.fits:
        print_line(f"the tables are as they should be: version {schema.version}")
    elif schema.missing:
        say(schema.loss)
    else:
        say(_standing(schema, settings))
    if not schema.fits:
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command()
@with_settings("database")
def sql(
    *,
    roles: Annotated[
        bool, typer.Option("--roles", show_default="off", help="Print the script that makes the roles instead.")
    ] = False,
    no_transaction: Annotated[
        bool,
        typer.Option(
            "--no-transaction", show_default="off", help="Leave BEGIN and COMMIT out, for a migration that has its own."
        ),
    ] = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Print the script that makes the tables.

    For those who run migrations of their own; nothing is opened. With --roles: the one that makes roles for writers,
    relays and viewers, to be run after it (PostgreSQL).
    """
    admin = open_admin(settings)
    script = admin.roles() if roles else admin.sql(transaction=not no_transaction)
    if json:
        print_json({"sql": script}, as_it_is=True)
    else:
        print(script)


def _standing(schema: SchemaStatus, settings: Settings) -> str:
    """Say how the tables stand, and which command brings them up to date."""
    if schema.elsewhere:
        return str(schema.instead)
    nothing = schema.instead or "there are no Pillarbox tables"
    there = f"the tables are at version {schema.version}" if schema.version else nothing
    line = f"{there}; this release needs {schema.needed}"
    return f"{line}: run {command('migrate up', settings)}" if schema.version < schema.needed else line


def _schema(settings: Settings) -> SchemaStatus:
    async def look() -> SchemaStatus:
        async with open_admin(settings) as admin:
            return await admin.schema()

    return asyncio.run(look())
