"""JSON Schema (draft 2020-12) of settings and of dataclasses, made from the tables and types that the readers use."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import getdoc
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spec.program.kinds import Flag, Kind, Number, Percentage, Several, Text, Whole, Word
from spec.settings.setting import Settings

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


def kind_schema(kind: Kind) -> Schema:
    """Returns the schema of a setting of this kind in a file; TypeError for a kind that has none."""
    match kind:
        case Whole():
            return {"type": "integer", "minimum": kind.least, "maximum": kind.most}
        case Number():
            return {"type": "number", "minimum": kind.least, "maximum": kind.most}
        case Percentage():
            share = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
            return {"anyOf": [share, {"type": "string", "description": kind.allowed}]}
        case Flag():
            return {"type": "boolean"}
        case Word():
            return {"enum": list(dict.fromkeys((*kind.words, *(["none"] if "" in kind.words else []))))}
        case Several():
            listed = {"type": "array", "items": kind_schema(kind.of), "minItems": kind.least}
            return {"anyOf": [listed, {"type": "string", "description": kind.allowed}]}
        case Text():
            return {"type": "string", "pattern": r"\S", "description": kind.means}
    raise TypeError(f"no schema for {kind!r}")


def settings_schema(settings: Settings) -> Schema:
    """A table of settings as files hold it: what stands before a dot in a key is a table of its own."""
    groups: dict[str, dict[str, Any]] = {}
    for one in settings.values():
        group, _, name = one.key.rpartition(".")
        schema: Schema = kind_schema(one.kind) | {"description": one.meaning}
        if one.default is not None:
            schema["default"] = _plain(one.default)
        groups.setdefault(group, {})[name] = schema
    own = groups.pop("", {})
    return table_schema(own | {group: table_schema(inside) for group, inside in groups.items()})


def table_schema(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """An object with these keys and no others."""
    result: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return result | ({"required": list(required)} if required else {})


def record_schema(of: type, instead: Mapping[str, Schema] | None = None) -> Schema:
    """A dataclass as ``dataclasses.asdict`` and JSON write it: every field, with those of ``instead`` in
    their places.
    """
    hints = get_type_hints(of)
    names = [one.name for one in fields(of)]
    properties = {name: (instead or {}).get(name) or type_schema(hints[name]) for name in names}
    description = " ".join((getdoc(of) or "").split())
    return {"description": description, **table_schema(properties, tuple(names))}


def type_schema(hint: Any) -> Schema:
    """A type of plain values, lists, tables and dataclasses; TypeError for any other."""
    if hint in PLAIN:
        return dict(PLAIN[hint])
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_schema(inside[0])
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(one) for one in inside]}
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (tuple, list, frozenset) and (origin is not tuple or inside[1:] == (...,)):
        return {"type": "array", "items": type_schema(inside[0])}
    if origin is dict and inside[0] is str:
        return {"type": "object", "additionalProperties": type_schema(inside[1])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if isinstance(hint, type) and is_dataclass(hint):
        return record_schema(hint)
    raise TypeError(f"no schema for {hint!r}")


def nullable_settings(settings: Settings) -> dict[str, Schema]:
    """Returns the schema of each setting in a result: its value, or null if it is not set."""
    result = {}
    for one in settings.values():
        value = kind_schema(one.kind)
        if isinstance(one.kind, Several):
            value = value["anyOf"][0]
        null = one.default in (None, MISSING)
        result[one.key] = {**({"anyOf": [value, {"type": "null"}]} if null else value), "description": one.meaning}
    return result


def _plain(value: object) -> object:
    """A default as JSON has it."""
    return sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
