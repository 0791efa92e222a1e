"""Reading the source of a user's code for what hooks cannot see: looking beyond the nodes of one rank."""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["far_reads"]

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
_BY_NODE = frozenset({"degree", "scatter", "bincount", "index_add", "index_add_", "scatter_add", "scatter_add_"})
_SOURCES = frozenset({"row", "src"})  # row, col = edge_index
_MODULES = frozenset({"torch", "F"})
_PARSER = threading.Lock()
"""Python 3.11 fails when threads parse at once."""


def far_reads(function: Callable[..., Any]) -> list[str] | None:
    """Return what in a function may look beyond this rank's nodes, as ``"'x.mean(0)' in line 7"``.

    That is: reductions that may run over dimension 0, pooling of whole graphs, and what is counted or read at the source end of
    edges, which may be a node of another rank. Along features (``x.mean(-1)``, ``x.softmax(dim=1)``) and at the target end everything
    is at hand. This reads text, so it may name a line that never sees nodes; it is asked about code that nobody has tested.

    Returns:
        What was found, or ``None`` if there is no source to read.

    Example:
        >>> far_reads(len) is None
        True
    """
    try:
        lines, first = inspect.getsourcelines(function)
        with _PARSER:
            tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    return [f"'{ast.unparse(node)}' in line {first + node.lineno - 1}" for node in _suspects(tree)]


def _suspects(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if (
                name.startswith(_WHOLE_GRAPH)
                or (name in _BY_NODE and any(_is_source(argument) for argument in node.args))
                or (name in _REDUCTIONS and _may_cross_rows(node, name))
            ):
                yield node
        elif isinstance(node, ast.Subscript) and _is_source(node.slice):
            yield node


def _is_source(node: ast.expr) -> bool:
    """Whether an expression is the source end of edges: ``row``, ``src`` or ``edge_index[0]``."""
    if isinstance(node, ast.Name):
        return node.id in _SOURCES
    if not isinstance(node, ast.Subscript):
        return False
    name = getattr(node.value, "id", getattr(node.value, "attr", ""))
    return "edge_index" in name and 0 in _constants(node.slice)


def _may_cross_rows(call: ast.Call, name: str) -> bool:
    if isinstance(call.func, ast.Name):  # max(a, b), sum(losses): not of torch
        return False
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "self":
        return False  # a module called self.norm, say, which is judged for itself
    keyword = next((k.value for k in call.keywords if k.arg in ("dim", "axis")), None)
    # x.mean(-1) has the dimension first, torch.mean(x, -1) second.
    of_module = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in _MODULES
    positional = [] if name == "normalize" else call.args[1:] if of_module else call.args
    if keyword is None and not positional:
        return name not in _LAST_DIM_BY_DEFAULT
    dims = _constants(keyword if keyword is not None else positional[0])
    if not dims:
        return name not in ("max", "min")  # torch.max(a, b) compares elements
    return 0 in dims


def _constants(node: ast.expr) -> list[int]:
    """Return the integers of a dimension argument; empty if they are not written out."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return []
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, int)]
