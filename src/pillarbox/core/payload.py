"""Payloads: the values an application states ⇄ the text or bytes that are stored and sent.

JSON is written compactly, in UTF-8, without NaN; models of dataclasses, pydantic and msgspec are recognised by
their shape, so that none of these libraries has to be there. Dataclasses are filled here: nested ones, unions,
lists, dicts, tuples, UUID, dates, Decimal and Enum; for more than that there are pydantic and msgspec.
"""

import dataclasses
import json
import sys
import types
import typing
from collections import abc
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from pillarbox.core.wording import a
from pillarbox.errors import DecodeError, EncodeError

JSON = "application/json"


def _plain(value: object) -> object:
    """Turn what the JSON encoder does not know into what it knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and hasattr(type(value), "model_fields"):
        return value.model_dump(mode="json", by_alias=True)  # its model reads by alias, too
    if hasattr(type(value), "__struct_fields__"):
        return sys.modules["msgspec"].to_builtins(value)  # a Struct exists, so its library is loaded
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    raise EncodeError(
        f"{a(type(value).__name__)} ({value!r:.60}) is nothing that JSON can say: turn it into a string or number first"
    )


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode
_sorted = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain, sort_keys=True
).encode


def to_json(payload: object, *, canonical: bool = False) -> str:
    """Write `payload` as compact JSON text; `canonical` sorts the keys, as text and not by their types in Python."""
    try:
        text = _dumps(payload)
        if canonical:
            text = _sorted(json.loads(text))
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.start + 20]
        raise EncodeError(f"a text holds a lone surrogate near {near!r}; remove it") from error
    except ValueError as error:
        if "JSON compliant" in str(error):
            raise EncodeError("NaN and infinity are not JSON: send null or a string instead") from error
        if "Circular" in str(error):
            raise EncodeError("it contains itself: leave out the reference back, or send an id instead") from error
        raise EncodeError(str(error)) from error
    except RecursionError as error:
        raise EncodeError("it is nested too deeply: flatten it, or send it as bytes") from error
    except TypeError as error:  # a key that is neither text nor number, or a model that cannot be written
        raise EncodeError(f"{error}; turn it into a string or number first") from error
    return text


def is_json(content_type: str) -> bool:
    """Tell whether a content type is JSON: application/json, or anything that ends in +json."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def check_json(text: str) -> str:
    """Refuse text that is not strict JSON."""
    try:
        _loads(text)
    except (ValueError, RecursionError) as error:
        raise EncodeError(f"it is not JSON: {error}") from error
    return text


def from_bytes(body: bytes, content_type: str, model: Any = None) -> Any:
    """Read a body: JSON into plain values or into `model`; any other content type stays bytes."""
    if not is_json(content_type):
        return body
    try:
        value = _loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"the body is not {content_type}", f"{error}; it begins {body[:60]!r}") from error
    return value if model is None else into(model, value)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_loads = json.JSONDecoder(parse_constant=_refuse).decode


def into(model: Any, value: object) -> Any:
    """Build a `model` (dataclass, pydantic, msgspec, or a plain type) from plain values."""
    try:
        return _convert(model, value)
    except Exception as error:  # a model's own checks may raise anything: whatever it is, the payload does not fit
        what = str(error) or type(error).__name__
        raise _unreadable(f"the payload does not fit {getattr(model, '__name__', model)}", what) from error


def _unreadable(brief: str, why: str) -> DecodeError:
    return DecodeError(f"{brief}: {why}", brief)


def _convert(model: Any, value: Any) -> Any:
    if hasattr(model, "model_validate"):
        return model.model_validate(value)
    if hasattr(model, "__struct_fields__"):
        return sys.modules["msgspec"].convert(value, model)
    origin = typing.get_origin(model) or model
    if dataclasses.is_dataclass(origin):
        return _dataclass(origin, value)
    if origin in _CONVERTERS:
        return _CONVERTERS[origin](typing.get_args(model), value)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return origin(value)
    if origin in (datetime, date):
        return origin.fromisoformat(value)
    if origin in (UUID, Decimal):
        return _from_text(origin, value)
    if isinstance(model, typing.NewType):
        return _convert(model.__supertype__, value)
    if isinstance(origin, type):
        return _exactly(origin, value)
    raise TypeError(f"{model} is not understood here: use pydantic or msgspec for such a model")


def _from_text(model: Any, value: Any) -> Any:
    try:
        return model(str(value))
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{value!r:.60} is no {model.__name__}") from error


def _exactly(model: type, value: Any) -> Any:
    if model is float and type(value) is int:
        return float(value)
    if not isinstance(value, model) or (model is int and isinstance(value, bool)):
        raise TypeError(f"expected {model.__name__}, found {value!r:.60}")
    return value


def _list_of(inner: tuple[Any, ...], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r:.60}")
    return [_convert(inner[0], item) for item in value] if inner else value


def _tuple_of(inner: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not inner or Ellipsis in inner:
        return tuple(_list_of(inner[:1], value))
    return tuple(_convert(one, item) for one, item in zip(inner, _list_of((), value), strict=True))


def _dict_of(inner: tuple[Any, ...], value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.60}")
    if not inner:
        return value
    to_key, to_value = inner
    return {_key(to_key, key): _convert(to_value, item) for key, item in value.items()}


def _key(model: Any, key: str) -> Any:
    # JSON has only text as keys, so a number was written as one.
    return _convert(model, json.loads(key) if model in (int, float, bool) else key)


def _first_that_fits(models: tuple[Any, ...], value: Any) -> Any:
    if type(value) in models or (value is None and type(None) in models):
        return value
    for model in models:
        try:
            return into(model, value)
        except DecodeError:
            continue
    raise TypeError(f"{value!r:.60} fits none of {', '.join(getattr(one, '__name__', str(one)) for one in models)}")


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise ValueError(f"expected one of {values}, found {value!r:.60}")
    return value


_CONVERTERS: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Any: lambda _, value: value,
    object: lambda _, value: value,
    None: lambda _, value: _exactly(type(None), value),
    typing.Union: _first_that_fits,
    types.UnionType: _first_that_fits,
    typing.Literal: _one_of,
    typing.Annotated: lambda inner, value: _convert(inner[0], value),
    list: _list_of,
    tuple: _tuple_of,
    set: lambda inner, value: set(_list_of(inner, value)),
    frozenset: lambda inner, value: frozenset(_list_of(inner, value)),
    dict: _dict_of,
    abc.Sequence: _list_of,
    abc.Iterable: _list_of,
    abc.Collection: _list_of,
    abc.Mapping: _dict_of,
}


@lru_cache(maxsize=1024)
def _fields(model: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(model)
    return {field.name: hints[field.name] for field in dataclasses.fields(model) if field.init}


def _dataclass(model: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.60}")
    fields = _fields(model)
    # Keys we do not know are left out: a newer producer may say more than this consumer understands.
    return model(**{key: _convert(fields[key], item) for key, item in value.items() if key in fields})
