"""Payloads: the values an application states ⇄ the text or bytes that are stored and sent.

JSON is written compactly, in UTF-8, without NaN; models of dataclasses, pydantic and msgspec are recognised by
their shape, so that none of these libraries has to be there.
"""

import dataclasses
import json
import sys
import types
import typing
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pillarbox.errors import DecodeError, EncodeError

JSON = "application/json"


def _plain(value: object) -> object:
    """Turn what the JSON encoder does not know into what it knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and hasattr(type(value), "model_fields"):
        return value.model_dump(mode="json")
    if hasattr(type(value), "__struct_fields__"):
        return sys.modules["msgspec"].to_builtins(value)  # a Struct exists, so its library is loaded
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    raise EncodeError(
        f"a {type(value).__name__} ({value!r:.60}) is nothing that JSON can say: turn it into a string or number first"
    )


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode
_sorted = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain, sort_keys=True
).encode


def to_json(payload: object, *, canonical: bool = False) -> str:
    """Write `payload` as compact JSON text; `canonical` sorts the keys."""
    try:
        text = _sorted(payload) if canonical else _dumps(payload)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"the text holds a lone surrogate at {error.start}: {error.object!r:.60}") from error
    except ValueError as error:
        if "JSON compliant" in str(error):
            raise EncodeError("NaN and infinity are not JSON: send null or a string instead") from error
        raise EncodeError(str(error)) from error
    except RecursionError as error:
        raise EncodeError("it is nested too deeply") from error
    except TypeError as error:  # a key that is neither text nor number
        raise EncodeError(str(error)) from error
    return text


def is_json(content_type: str) -> bool:
    """Tell whether a content type is JSON: application/json, or anything that ends in +json."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def from_bytes(body: bytes, content_type: str, model: Any = None) -> Any:
    """Read a body: JSON into plain values or into `model`; any other content type stays bytes."""
    if not is_json(content_type):
        return body
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the body is not {content_type}: {error}; it begins {body[:60]!r}") from error
    return value if model is None else into(model, value)


def into(model: Any, value: object) -> Any:
    """Build a `model` (dataclass, pydantic, msgspec, or a plain type) from plain values."""
    try:
        if hasattr(model, "model_validate"):
            return model.model_validate(value)
        if hasattr(model, "__struct_fields__"):
            return sys.modules["msgspec"].convert(value, model)
        return _convert(model, value)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise DecodeError(f"the payload does not fit {getattr(model, '__name__', model)}: {error}") from error


def _convert(model: Any, value: Any) -> Any:
    origin = typing.get_origin(model)
    if model is Any or model is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(typing.get_args(model), value)
    if origin in (list, set, frozenset, tuple) or model in (list, set, frozenset, tuple):
        return _sequence(model, origin or model, value)
    if origin is dict:
        to_key, to_value = typing.get_args(model)
        return {_convert(to_key, key): _convert(to_value, item) for key, item in value.items()}
    if dataclasses.is_dataclass(model):
        return _dataclass(model, value)
    if hasattr(model, "model_validate") or hasattr(model, "__struct_fields__"):
        return into(model, value)
    if model in (datetime, date):
        return model.fromisoformat(value)
    if model in (UUID, Decimal):
        return model(str(value))
    if isinstance(model, type) and issubclass(model, Enum):
        return model(value)
    if model is float and type(value) is int:
        return float(value)
    if model is None or model is type(None):
        model = type(None)
    if isinstance(model, type) and (not isinstance(value, model) or (model is int and isinstance(value, bool))):
        raise TypeError(f"expected {model.__name__}, found {value!r:.60}")
    return value


def _sequence(model: Any, kind: Any, value: Any) -> Any:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r:.60}")
    inner = [one for one in typing.get_args(model) if one is not Ellipsis]
    if not inner:
        return kind(value)
    if kind is tuple and Ellipsis not in typing.get_args(model):
        return tuple(_convert(one, item) for one, item in zip(inner, value, strict=True))
    return kind(_convert(inner[0], item) for item in value)


def _first_that_fits(models: tuple[Any, ...], value: Any) -> Any:
    for model in models:
        try:
            return _convert(model, value)
        except (TypeError, ValueError, KeyError, ArithmeticError, DecodeError):
            continue
    raise TypeError(f"{value!r:.60} fits none of {models}")


def _dataclass(model: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.60}")
    hints = typing.get_type_hints(model)
    known = {field.name for field in dataclasses.fields(model) if field.init}
    # Keys we do not know are left out: a newer producer may say more than this consumer understands.
    return model(**{key: _convert(hints[key], item) for key, item in value.items() if key in known})
