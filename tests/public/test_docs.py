"""The code in README.md and docs/ runs: every page's blocks, in their order, in a directory of their own.

What a page may say in an HTML comment right before a block, or in its place:

    <!-- not run: why -->         the block is shown only; such blocks are counted at the end of the test run
    <!-- file: shop/billing.py -->  the block is the contents of that file
    <!-- in the background -->    the commands of the block run until the page ends, and must then stop well on SIGTERM;
                                  what follows waits until they have said what the block shows
    <!-- exit 3 -->               the last command of the block ends with this code instead of 0
    <!-- on PostgreSQL -->        the page has a server of its own, with an empty database `shop`
    <!-- on RabbitMQ -->          RABBITMQ_URL names an empty virtual host
    <!-- on Kafka -->             KAFKA names a server of its own, with an empty topic `order-events`
    <!-- run:                     Python that readers need not see, such as an engine or a class
    ...
    -->

An `sql` block runs in that database. A `toml` block is loaded as a file of settings. A `text` block is only shown: a
picture, or what somebody else prints. Any other block needs a mark.
A `console` block holds the commands pillarbox, python, touch and make (whose verbs are only looked up). What one prints
may go to a file, `> script.sql`, or into the page's database, `| psql shop`.
Output that it shows is compared, line by line; `…` stands for anything.
"""

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import psycopg
import pytest

from pillarbox import Settings
from pillarbox.errors import ConfigError
from tests.public.conftest import ASKS_FOR

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATIENCE = 60
_PIECE = re.compile(
    r"^<!-- *(?P<comment>.*?) *-->[ \t]*$|^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A piece of a page that runs: its language, its text, where it stands, and what the comment before it says."""

    language: str
    text: str
    line: int
    mark: str = ""


def blocks_of(page: str) -> Iterator[Block]:
    """Take a page apart."""
    mark, mark_ends = "", 0
    for piece in _PIECE.finditer(page):
        line = page.count("\n", 0, piece.start()) + 1
        if (comment := piece["comment"]) is not None:
            if comment.startswith("run:"):
                yield Block("python", dedent(comment.removeprefix("run:")), line)
            else:
                mark, mark_ends = comment, piece.end()
            continue
        stands_before = page[mark_ends : piece.start()].isspace() and mark
        yield Block(piece["language"], dedent(piece["text"]), line, mark if stands_before else "")


class Runner:
    """Runs a page's blocks in a directory; its Python blocks share their names."""

    def __init__(self, page: str, directory: Path) -> None:
        self._page, self._directory = page, directory
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._exported: dict[str, str] = {}
        self._background: list[tuple[subprocess.Popen[str], Path]] = []
        self.not_run: list[str] = []

    def __enter__(self) -> Self:
        self._modules, self._path, self._cwd = set(sys.modules), list(sys.path), Path.cwd()
        os.chdir(self._directory)
        sys.path.insert(0, str(self._directory))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._names.clear()
        os.chdir(self._cwd)
        sys.path[:] = self._path
        here = str(self._directory)
        for name in sys.modules.keys() - self._modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(here):
                del sys.modules[name]
        for process, _ in self._background:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(PATIENCE) for process, _ in self._background]
        if error is None:
            assert codes == [0] * len(codes), "\n".join(log.read_text() for _, log in self._background)

    def run(self, block: Block) -> None:
        where = f"{self._page}, line {block.line}"
        if block.mark.startswith("not run"):
            reason = block.mark.removeprefix("not run").lstrip(": ")
            assert reason, f"{where}: say why it is not run: <!-- not run: because … -->"
            self.not_run.append(f"{where}: {reason}")
        elif block.mark.startswith("file:"):
            self._write(block.mark.removeprefix("file:").strip(), block.text)
        elif block.language == "python":
            self._run_python(block.text, where)
        elif block.language == "console":
            self._run_console(block, where)
        elif block.language == "sql":
            self._run_sql(block.text)
        elif block.language == "toml":
            self._load_settings(block.text)
        else:
            assert block.language == "text", f"{where}: nobody runs {block.language or 'it'}: say so, or call it text"

    def _write(self, name: str, text: str) -> None:
        file = self._directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _run_python(self, text: str, where: str) -> None:
        code = compile(text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self._names)
        if inspect.iscoroutine(result):
            asyncio.run(result)

    def _run_sql(self, text: str) -> None:
        with psycopg.connect("dbname=shop", autocommit=True) as connection:
            connection.execute(text.encode())

    def _load_settings(self, text: str) -> None:
        file = self._directory / ".settings-on-the-page.toml"
        file.write_text(text)
        Settings.load(file, environment={})

    def _run_console(self, block: Block, where: str) -> None:
        commands = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)
        assert commands[0].strip() == "", f"{where}: a console block begins with `$ `"
        for number, text in enumerate(commands[1:], start=1):
            line, _, output = text.partition("\n")
            last = number == len(commands) - 1
            exit_code = int(block.mark.removeprefix("exit ")) if block.mark.startswith("exit ") and last else 0
            self._run_command(line, output, exit_code, "background" in block.mark, where)

    def _run_command(self, line: str, output: str, exit_code: int, background: bool, where: str) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            makefile = (ROOT / "Makefile").read_text()
            assert all(f"\n{verb}:" in makefile for verb in words[1:]), f"{where}: make has no such verb: {line}"
            return
        if words[0] == "export":
            self._exported |= dict([words[1].split("=", 1)])
            return
        if words[0] == "touch":
            for name in words[1:]:
                (self._directory / name).touch()
            return
        assert words[0] in ("pillarbox", "python"), f"{where}: mark what cannot be run as not run: {line}"
        words, goes_to = _split_off(words)
        command = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
        if background:
            self._run_in_background(command, output, f"{where}: {line}")
            return
        process = self._start(command, subprocess.PIPE)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == exit_code, f"{where}: {line}\nended with {process.returncode}:\n{said}"
        if goes_to == ["|", "psql", "shop"]:
            self._run_sql(said)
        elif goes_to:
            assert goes_to[0] == ">", f"{where}: nothing but `> file` and `| psql shop` is known: {line}"
            self._write(goes_to[1], said)
        assert not output.strip() or matches(output, said), f"{where}: {line}\nshould say:\n{output}\nand says:\n{said}"

    def _run_in_background(self, command: list[str], output: str, where: str) -> None:
        log = self._directory / f".background-{len(self._background)}"
        with log.open("w") as stream:
            process = self._start(command, stream)
        self._background.append((process, log))
        deadline = time.monotonic() + PATIENCE
        while output.strip() and not matches(output.rstrip() + "…", log.read_text()):
            waits = process.poll() is None and time.monotonic() < deadline
            assert waits, f"{where}\nshould say:\n{output}\nand says:\n{log.read_text()}"
            time.sleep(0.05)

    def _start(self, command: list[str], stdout: int | IO[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(self._directory)}
        environment |= self._exported
        return subprocess.Popen(
            command,
            cwd=self._directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _split_off(words: list[str]) -> tuple[list[str], list[str]]:
    """Split where a shell would send the output elsewhere."""
    end = next((n for n, word in enumerate(words) if word in (">", "|")), len(words))
    return words[:end], words[end:]


def matches(shown: str, said: str) -> bool:
    """Compare what a page shows with what a command said, line by line; `…` stands for anything, of any width."""

    def lines(text: str) -> str:
        return "\n".join(re.sub(" +", " ", line.rstrip()) for line in text.strip().splitlines())

    first, *others = [part.strip(" ") for part in lines(shown).split("…")]
    said = lines(said)
    if not others:
        return said == first
    at = len(first) if said.startswith(first) else -1
    for part in others[:-1]:  # not one expression for all of it: that may try for hours
        at = said.find(part, at) + len(part) if at >= 0 and part in said[at:] else -1
    return at >= 0 and said[at:].endswith(others[-1])


def run_page(page: str, name: str, directory: Path) -> list[str]:
    """Run a page; give what was not run, and why."""
    with Runner(name, directory) as runner:
        for block in blocks_of(page):
            runner.run(block)
    return runner.not_run


def slow_ones_marked(pages: list[Path]) -> list[Any]:
    """Leave the pages that start Kafka to the soak."""
    return [pytest.param(page, marks=pytest.mark.soak) if runs_java(page.read_text()) else page for page in pages]


def runs_java(page: str) -> bool:
    return "servers.kafka" in page or "<!-- on Kafka -->" in page


def start_servers(page: str, request: pytest.FixtureRequest) -> None:
    """Start what a page asks for."""
    for mark, fixture in ASKS_FOR.items():
        if mark in page:
            request.getfixturevalue(fixture)


@pytest.mark.parametrize("page", slow_ones_marked(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_a_page_runs(
    page: Path, tmp_path: Path, record_property: Any, request: pytest.FixtureRequest
) -> None:
    start_servers(page.read_text(), request)
    for reason in run_page(page.read_text(), str(page.relative_to(ROOT)), tmp_path):
        record_property("not run", reason)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|examples)/[\w./*]+)`", page.read_text())
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_is_fenced_so_that_it_is_seen(page: Path) -> None:
    assert indented_blocks_of(page.read_text()) == []


def indented_blocks_of(page: str) -> list[str]:
    """Give the first lines of blocks that are code by their indentation alone: outside of fences, below no list."""
    found, above = [], ""
    for part in re.split(r"\n\s*\n", _PIECE.sub("", page)):
        if part.startswith("    ") and not re.match(r"\s*([-*]|\d+\.) ", above):
            found.append(part.splitlines()[0].strip())
        above = part if part.strip() else above
    return found


def page_of(*parts: str) -> str:
    return "\n\n".join(parts)


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def test_blocks_of_a_page_share_their_names_and_their_directory(tmp_path: Path) -> None:
    write = "from pathlib import Path\nname = 'note.txt'\nPath(name).write_text('hello')"
    page = page_of(fenced("python", write), "Then:", fenced("python", "assert Path(name).read_text() == 'hello'"))
    assert run_page(page, "page", tmp_path) == []
    assert (tmp_path / "note.txt").exists()


def test_a_block_that_fails_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_page(fenced("python", "1 / 0"), "page", tmp_path)


def test_a_block_may_await(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_page(fenced("python", "import asyncio\nawait asyncio.sleep(0)\n1 / 0"), "page", tmp_path)


def test_hidden_python_runs_before_what_follows(tmp_path: Path) -> None:
    write = "from pathlib import Path\nPath('note.txt').write_text(hidden)"
    run_page(page_of("<!-- run:\nhidden = 'hello'\n-->", fenced("python", write)), "page", tmp_path)
    assert (tmp_path / "note.txt").read_text() == "hello"


def test_a_file_can_be_imported_by_what_follows(tmp_path: Path) -> None:
    page = page_of(
        "<!-- file: warehouse/stock.py -->",
        fenced("python", "LEFT = 3"),
        fenced("python", "from warehouse.stock import LEFT\nassert LEFT == 3"),
    )
    run_page(page, "page", tmp_path)
    assert "warehouse.stock" not in sys.modules


def test_a_block_that_is_not_run_is_counted_with_its_reason(tmp_path: Path) -> None:
    page = page_of("# Title", "<!-- not run: needs a server -->", fenced("python", "1 / 0"))
    assert run_page(page, "page", tmp_path) == ["page, line 5: needs a server"]


def test_a_block_that_is_not_run_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="say why"):
        run_page(page_of("<!-- not run -->", fenced("python", "1 / 0")), "page", tmp_path)


def test_a_mark_holds_only_for_the_block_right_after_it(tmp_path: Path) -> None:
    page = page_of("<!-- not run: no -->", fenced("python", "1 / 0"), fenced("python", "2 / 0"))
    with pytest.raises(ZeroDivisionError):
        run_page(page, "page", tmp_path)


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with 2"):
        run_page(fenced("console", "$ pillarbox no-such-command"), "page", tmp_path)


def test_a_command_may_be_shown_to_fail(tmp_path: Path) -> None:
    page = page_of("<!-- exit 2 -->", fenced("console", "$ pillarbox no-such-command"))
    assert run_page(page, "page", tmp_path) == []
    with pytest.raises(AssertionError, match="ended with 2"):
        run_page(page.replace("exit 2", "exit 3"), "page", tmp_path)


def test_output_that_is_shown_must_be_what_the_command_says(tmp_path: Path) -> None:
    run_page(fenced("console", "$ pillarbox --help\n…Usage…demo…"), "page", tmp_path)
    with pytest.raises(AssertionError, match="should say"):
        run_page(fenced("console", "$ pillarbox --help\nsomething else"), "page", tmp_path)


def test_python_runs_a_file_of_the_page(tmp_path: Path) -> None:
    file = page_of("<!-- file: stock.py -->", fenced("python", STOCK))
    assert run_page(page_of(file, fenced("console", "$ python stock.py 3\n3 left")), "page", tmp_path) == []
    with pytest.raises(AssertionError, match=r"4 left\s+and says:\s+3 left"):
        run_page(page_of(file, fenced("console", "$ python stock.py 3\n4 left")), "page", tmp_path)


STOCK = """
import signal, sys

print(sys.argv[1], "left", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if sys.argv[1] == "forever":
    signal.pause()
"""


def test_what_runs_in_the_background_must_say_what_is_shown(tmp_path: Path) -> None:
    file = page_of("<!-- file: stock.py -->", fenced("python", STOCK), "<!-- in the background -->")
    run_page(page_of(file, fenced("console", "$ python stock.py forever\nforever left")), "page", tmp_path)
    with pytest.raises(AssertionError, match=r"nothing left\s+and says:\s+0 left"):
        run_page(page_of(file, fenced("console", "$ python stock.py 0\nnothing left")), "page", tmp_path)


@pytest.mark.parametrize("line", ["$ make no-such-verb", "$ curl somewhere", "no prompt"])
def test_a_console_block_holds_only_what_can_be_checked(tmp_path: Path, line: str) -> None:
    with pytest.raises(AssertionError):
        run_page(fenced("console", line), "page", tmp_path)


@pytest.mark.parametrize("text", ["database = nonsense", "[relay]\nno_such_setting = 5", "[relay]\nlease = 'soon'"])
def test_settings_on_a_page_can_be_loaded(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        run_page(fenced("toml", text), "page", tmp_path)


@pytest.mark.parametrize("language", ["", "yaml", "bash", "pyhton"])
def test_a_block_that_nobody_runs_must_be_marked(tmp_path: Path, language: str) -> None:
    with pytest.raises(AssertionError, match="nobody runs"):
        run_page(fenced(language, "text"), "page", tmp_path)
    marked = page_of("<!-- not run: it is for somebody else -->", fenced(language, "text"))
    assert run_page(marked, "page", tmp_path) == ["page, line 3: it is for somebody else"]
    assert run_page(fenced("text", "a picture"), "page", tmp_path) == []


def test_a_block_that_is_only_indented_is_found() -> None:
    page = page_of("Words:", "    make bench", fenced("python", "if x:\n\n    y()"))
    assert indented_blocks_of(page) == ["make bench"]
    assert indented_blocks_of("- a point\n\n    and more of it") == []


def test_what_a_command_prints_may_go_to_a_file(tmp_path: Path) -> None:
    print_it = fenced("console", "$ python -c 'print(6 * 7)' > answer.txt")
    run_page(page_of(print_it, fenced("console", "$ touch empty.txt")), "page", tmp_path)
    assert (tmp_path / "answer.txt").read_text() == "42\n"
    assert (tmp_path / "empty.txt").read_text() == ""


@pytest.mark.usefixtures("shop_on_postgres")
def test_what_a_command_prints_may_go_to_psql(tmp_path: Path) -> None:
    make = fenced("console", "$ python -c 'print(\"CREATE TABLE printed ()\")' | psql shop")
    run_page(page_of(make, fenced("sql", "SELECT * FROM printed;")), "page", tmp_path)


@pytest.mark.usefixtures("shop_on_postgres")
def test_sql_on_a_page_runs_in_its_database(tmp_path: Path) -> None:
    page = page_of(fenced("sql", "CREATE TABLE orders ();"), fenced("sql", "SELECT * FROM orders;"))
    assert run_page(page, "page", tmp_path) == []
    with pytest.raises(psycopg.errors.UndefinedTable):
        run_page(fenced("sql", "SELECT * FROM no_such_table;"), "page", tmp_path)
