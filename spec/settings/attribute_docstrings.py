"""The text that stands under each field of a dataclass, for tables and errors."""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent


@cache
def attribute_docstrings(of: type) -> dict[str, str]:
    """For each field of the class the string literal directly under it, on one line; fields without one are
    left out.
    """
    tree = ast.parse(dedent(inspect.getsource(of)))
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    found: dict[str, str] = {}
    for statement, below in pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[statement.target.id] = " ".join(str(below.value.value).split())
    return found
