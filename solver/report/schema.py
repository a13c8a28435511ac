"""JSON Schema of what ``--json`` writes, and of the tables [plan], [job] and [constraints] of a config."""

from collections.abc import Mapping
from typing import Any

from solver.analysis.explanation import Explanation
from solver.analysis.goodput import Goodput, RunCost
from solver.analysis.sweep import AXES
from solver.problem.result import Answer
from spec.settings.constraints import BY_KEY, constraint_settings, keys_of
from spec.settings.job import job_settings
from spec.settings.plan import plan_settings
from spec.settings.schema import (
    DRAFT,
    Schema,
    nullable_settings,
    record_schema,
    settings_schema,
    table_schema,
    type_schema,
)

NEVER = ("seconds", "gpu_hours", "energy_kwh")
"""Of a run that interruptions never let end: null."""


def schemas() -> dict[str, Schema]:
    """Returns every schema by its name."""
    return {
        "answer": answer_schema(),
        "plan": _with_title("The table [plan] of a config, and the keys of --plan", settings_schema(plan_settings())),
        "job": _with_title("The table [job] of a config, and the keys of --job", settings_schema(job_settings())),
        "constraints": _with_title("The table [constraints] of a config", _constraints()),
    }


def answer_schema() -> Schema:
    """Returns the schema of a search, one priced plan, or a sweep, with its optional parts."""
    schema = _with_title("What --json writes: a search, one priced plan, or a sweep", {"anyOf": []})
    schema["anyOf"] = [{"$ref": f"#/$defs/{name}"} for name in ("search", "priced", "sweep")]
    schema["$defs"] = {
        "plan": _plan(),
        "answer": record_schema(Answer, {"plan": _of("plan")}),
        "question": table_schema(_question(), tuple(_question())),
        "explained": record_schema(Explanation, {"plan": _of("plan")}),
        "goodput": record_schema(Goodput),
        "run": record_schema(RunCost, dict.fromkeys(NEVER, type_schema(float | None))),
        "search": _search(),
        "priced": _priced(),
        "sweep": _sweep(),
    }
    return schema


def _with_title(title: str, schema: Schema) -> Schema:
    return {"$schema": DRAFT, "title": title, **schema}


def _of(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(of: Schema) -> Schema:
    return {"anyOf": [of, {"type": "null"}]}


def _plan() -> Schema:
    """Returns the schema of an answer's plan: every key of its settings, and its data-parallel ranks."""
    keys = nullable_settings(plan_settings())
    keys["dp"] = {"type": "integer", "minimum": 1, "description": "Data-parallel ranks."}
    return table_schema(keys, tuple(keys))


def _question() -> dict[str, Schema]:
    words = ("model", "cluster", "gpu", "preset", "evidence")
    counts = ("world_size", "seq_len", "global_batch_tokens")
    return {word: {"type": "string"} for word in words} | {count: {"type": "integer", "minimum": 1} for count in counts}


def _other_settings() -> dict[str, Schema]:
    """Returns the schemas of the optional parts of an answer."""
    reasons = {"broken": type_schema(list[str]), "modes": type_schema(list[str]), "this": _of("answer")}
    reasons["others_searched"] = _or_null(_of("answer"))
    answer = record_schema(Answer, {"plan": _of("plan")})
    compared = table_schema(answer["properties"] | {"broken": type_schema(list[str])}, (*answer["required"], "broken"))
    return {
        "explain": _list(_of("explained")),
        "why_not": _list(table_schema(reasons, tuple(reasons))),
        "compare": _list(compared),
        "goodput": _of("goodput"),
        "run": _of("run"),
    }


def _search() -> Schema:
    what_if: Mapping[str, Any] = {
        "what": {"type": "string"},
        "best": _or_null(_of("answer")),
        "against": _or_null(_of("answer")),
        "why_none": {"type": "string"},
    }
    always = {
        "question": _of("question"),
        "constraints": type_schema(list[str]),
        "best": _list(_of("answer")) | {"minItems": 1},
        "best_of_mode": {"type": "object", "additionalProperties": _of("answer")},
        "pareto": _list(_of("answer")),
        "num_seen": {"type": "integer", "minimum": 1},
        "num_priced": {"type": "integer", "minimum": 1},
        "rejected": type_schema(dict[str, int]),
        "nearest_miss": {"type": "string"},
        "seconds": {"type": "number"},
        "ties": type_schema(list[int]),
        "with_all_memory": _or_null(_of("answer")),
    }
    changes = _list(table_schema(what_if, tuple(what_if)))
    optional = _other_settings() | {"sensitivity": changes, "tried": changes, "frameworks": changes}
    return table_schema(always | optional, tuple(always))


def _priced() -> Schema:
    always = _question() | {"plan": _of("answer")}
    return table_schema(always | _other_settings(), tuple(always))


def _sweep() -> Schema:
    value = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    row = {
        "values": table_schema(dict.fromkeys(AXES, value)),
        "question": _of("question"),
        "best": _or_null(_of("answer")),
        "efficiency": type_schema(float | None),
        "why_none": {"type": "string"},
        "goodput": _or_null(_of("goodput")),
        "run": _or_null(_of("run")),
    }
    runs = {key: row[key] for key in ("values", "best", "why_none")} | {"idle_nodes": type_schema(int | None)}
    sweep = {"sweep": _list(table_schema(row, tuple(row))), "replanned": _list(table_schema(runs, tuple(runs)))}
    return table_schema(sweep, ("sweep",))


def _constraints() -> Schema:
    schema = settings_schema(constraint_settings())
    schema["properties"] |= {verb: settings_schema(keys_of(verb)) for verb in BY_KEY}
    return schema
