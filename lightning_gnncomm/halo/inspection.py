"""Reading the source of a user's layer for what its hooks would not see: reductions over the nodes of one rank."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["row_reductions"]

_REDUCTIONS = frozenset(
    {
        *(
            "mean",
            "sum",
            "std",
            "var",
            "var_mean",
            "std_mean",
            "median",
            "mode",
            "prod",
            "norm",
            "logsumexp",
            "amax",
            "amin",
        ),
        *(
            "max",
            "min",
            "argmax",
            "argmin",
            "softmax",
            "log_softmax",
            "cumsum",
            "cumprod",
            "sort",
            "argsort",
            "topk",
            "unique",
        ),
        *("normalize", "quantile", "kthvalue"),
    }
)
_LAST_DIM_BY_DEFAULT = frozenset({"softmax", "log_softmax", "sort", "argsort", "topk", "normalize", "kthvalue"})
_WHOLE_GRAPH = "global_"  # global_mean_pool and its kin


def row_reductions(function: Callable[..., Any]) -> list[str] | None:
    """Return the calls in a function that may reduce or mix dimension 0, as ``"x.mean(0) in line 7"``.

    Calls with a last or positive dimension (``x.mean(-1)``, ``x.softmax(dim=1)``) are along features and not among them. It reads
    text, so it may name a call that never sees nodes; it is asked about code nobody has tested.

    Returns:
        Calls found, or ``None`` if there is no source to read.

    Example:
        >>> row_reductions(len) is None
        True
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    return [f"'{ast.unparse(call)}' in line {first + call.lineno - 1}" for call in _suspects(tree)]


def _suspects(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.startswith(_WHOLE_GRAPH) or (name in _REDUCTIONS and _may_cross_rows(node, name)):
                yield node


def _may_cross_rows(call: ast.Call, name: str) -> bool:
    if isinstance(call.func, ast.Name):  # max(a, b), sum(losses): not of torch
        return False
    keyword = next((k.value for k in call.keywords if k.arg in ("dim", "axis")), None)
    # x.mean(-1) has the dimension first, torch.mean(x, -1) second.
    module = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in ("torch", "F")
    positional = call.args[1:] if module else call.args
    if keyword is None and not positional:
        return name not in _LAST_DIM_BY_DEFAULT
    dims = _constants(keyword if keyword is not None else positional[0])
    return not dims or 0 in dims


def _constants(node: ast.expr) -> list[int]:
    """Return the integers of a dimension argument; empty if they are not written out."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return []
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, int)]
