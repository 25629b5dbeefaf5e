"""The public names, and what importing them costs."""

import importlib.metadata
import inspect
import subprocess
import sys

import pytest

import pillarbox
from pillarbox import errors

NAMES = {
    "AddError",
    "BrokerUnavailable",
    "CodecError",
    "ConfigError",
    "Consumer",
    "DecodeError",
    "DuplicateEvent",
    "EncodeError",
    "Event",
    "HandlerError",
    "HandlerFailed",
    "HandlerMissing",
    "HandlerSignal",
    "InvalidEvent",
    "LaneLost",
    "MissingExtra",
    "NoTransaction",
    "PillarboxError",
    "PublishError",
    "PublishRejected",
    "PublishTimeout",
    "Reject",
    "Relay",
    "RetryLater",
    "SchemaMismatch",
    "Settings",
    "StoreError",
    "StoreUnavailable",
}


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(pillarbox.__all__) == NAMES
    assert dir(pillarbox) == sorted(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_a_class_with_a_docstring(name: str) -> None:
    thing = getattr(pillarbox, name)
    assert inspect.isclass(thing)
    assert inspect.getdoc(thing)


def test_every_error_is_public() -> None:
    everything = {
        name for name, thing in vars(errors).items() if inspect.isclass(thing) and thing.__module__ == errors.__name__
    }
    assert everything <= NAMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pillarbox' has no attribute 'Sender'"):
        pillarbox.Sender  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert pillarbox.__version__ == importlib.metadata.version("pillarbox")


def test_importing_pillarbox_imports_neither_an_event_loop_nor_anything_installed() -> None:
    code = """
import sys
before = set(sys.modules)
import pillarbox
pillarbox.Event("OrderPlaced", {"total": 42}, aggregate=("order", 7))
pillarbox.Settings()
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names - {"pillarbox"}))
print(sorted({"asyncio", "ssl", "socket", "sqlite3", "logging"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n[]\n"
