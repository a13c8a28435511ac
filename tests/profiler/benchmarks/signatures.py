"""Functions that take what their sources take (signatures.toml), and do what a test says."""

import ast
import tomllib
from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

RELEASES = ("transformer_engine-2.1", "transformer_engine-2.9", "transformer_engine-2.20")


@cache
def signature(source: str, name: str) -> Signature:
    """The parameters of a function; an argument that it does not have is a TypeError of ``bind``."""
    text = tomllib.loads(Path(__file__).with_name("signatures.toml").read_text())[source][name]
    tree = ast.parse(f"def function({text}): ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    args = tree.args
    plain = [(one, Parameter.POSITIONAL_ONLY) for one in args.posonlyargs]
    plain += [(one, Parameter.POSITIONAL_OR_KEYWORD) for one in args.args]
    required = len(plain) - len(args.defaults)
    parameters = [
        Parameter(one.arg, kind, default=Parameter.empty if place < required else ...)
        for place, (one, kind) in enumerate(plain)
    ]
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parameters.append(
            Parameter(one.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else ...)
        )
    return Signature(parameters)


def checked(source: str, name: str, function: Callable[..., Any], *, skipped: int = 0) -> Callable[..., Any]:
    """The function, its arguments (without ``skipped`` first ones) held against the source's."""

    @wraps(function)
    def call(*args: Any, **words: Any) -> Any:
        signature(source, name).bind(*args[skipped:], **words)
        return function(*args, **words)

    return call


def checked_class(source: str, made: type) -> type:
    """The class, each of its methods held against the source's method of this name."""
    for name, member in list(vars(made).items()):
        if callable(getattr(made, name)) and (name == "__init__" or not name.startswith("_")):
            static = isinstance(member, staticmethod)
            call = checked(source, f"{made.__name__}.{name}", getattr(made, name), skipped=0 if static else 1)
            setattr(made, name, staticmethod(call) if static else call)
    return made
