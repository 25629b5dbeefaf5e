"""What a dead event is to carry instead: from a file, or from the person's own editor."""

import base64
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pillarbox.cli.output import record_json, say
from pillarbox.core.payload import is_json
from pillarbox.ports import Record

Payload = Annotated[
    Path | None,
    typer.Option(
        "--payload", metavar="FILE", show_default="as it is", help="Let the one event carry what this file holds."
    ),
]
Edit = Annotated[
    bool, typer.Option("--edit", show_default="off", help="Change what the one event carries in $VISUAL or $EDITOR.")
]


def check_one(ids: list[str] | None, payload: Path | None, *, edit: bool, inbox: bool) -> None:
    """Refuse to edit anything but one event of the outbox, in one way."""
    flag = "'--edit'" if edit else "'--payload'"
    if edit and payload is not None:
        raise typer.BadParameter("give a file or use the editor, not both", param_hint=flag)
    if inbox:
        raise typer.BadParameter("what was received cannot be edited: edit it where it was added", param_hint=flag)
    if len(ids or ()) != 1:
        raise typer.BadParameter("one event is edited at a time: name its id", param_hint=flag)


def read_payload(file: Path) -> bytes:
    """Read the file."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="'--payload'") from error


def edit_payload(record: Record) -> bytes:
    """Let the person change what an event carries; the file is theirs alone, and gone afterwards."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise typer.BadParameter("neither VISUAL nor EDITOR is set; --payload takes a file", param_hint="'--edit'")
    if not is_json(record.content_type):
        raise typer.BadParameter(
            f"{record.content_type} is for no editor; --payload takes a file", param_hint="'--edit'"
        )
    with tempfile.TemporaryDirectory(prefix="pillarbox-") as directory:
        file = Path(directory, f"{record.type.replace(os.sep, '-')[:100]}.json")
        before = _for_people(record)
        file.write_bytes(before)
        _open(editor, file)
        after = read_payload(file)
    if after == before:
        say("nothing was changed, so nothing is retried")
        raise typer.Abort
    return after


def _open(editor: str, file: Path) -> None:
    try:
        subprocess.run([*shlex.split(editor), str(file)], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise typer.BadParameter(f"the editor {editor!r} failed: {error}", param_hint="'--edit'") from error


def _for_people(record: Record) -> bytes:
    document = record_json(record)
    if document["body_base64"] is not None:
        return base64.b64decode(document["body_base64"])
    payload = document["payload"]
    if isinstance(payload, str) and isinstance(record.data, str) and payload == record.data:
        return payload.encode()  # no JSON that we can read, as it stands
    return (json.dumps(payload, ensure_ascii=False, indent=2) + "\n").encode()
