"""Reading the source of a user's code for what hooks cannot see: looking beyond the nodes of one rank."""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["far_reads", "far_reads_of"]

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
_BY_GRAPH = _BY_NODE.union(
    ["scatter_reduce", "scatter_reduce_"],
    ["scatter_mean", "scatter_sum", "scatter_max", "scatter_min", "segment", "softmax"],
)
_OF_THE_GRAPH = frozenset(
    {
        *("avg_pool", "avg_pool_x", "graclus", "max_pool", "max_pool_x", "voxel_grid"),
        *("fps", "knn", "knn_graph", "knn_interpolate", "nearest", "radius", "radius_graph"),
        *("batched_negative_sampling", "negative_sampling", "structured_negative_sampling", "random_walk"),
        *("dropout_node", "k_hop_subgraph", "subgraph", "to_dense_adj", "to_dense_batch", "to_undirected", "unbatch"),
        *("corrcoef", "cov", "pdist"),
    }
)
_PRODUCTS = frozenset({"matmul", "mm", "spmm", "addmm"})
_SOURCES = frozenset({"row", "src"})  # row, col = edge_index
_MODULES = frozenset({"torch", "F"})
_PARSER = threading.Lock()
"""Python 3.11 fails when threads parse at once."""


def far_reads(function: Callable[..., Any]) -> list[str] | None:
    """Return what in a function may look beyond this rank's nodes, as ``"'x.mean(0)' in line 7"``.

    That is: reductions that may run over dimension 0 or by a ``batch`` vector, products with the adjacency or that sum over rows
    (``x.t() @ x``), pooling and sampling of whole graphs, and what is counted or read at the source end of edges, which may be a
    node of another rank. Along features (``x.mean(-1)``, ``x.softmax(dim=1)``) and at the target end everything is at hand. This
    reads text, so it may name a line that never sees nodes; it is asked about code that nobody has tested.

    Returns:
        What was found, or ``None`` if there is no source to read.

    Example:
        >>> far_reads(len) is None
        True
    """
    source = _source_of(function)
    if source is None:
        return None
    tree, first = source
    return [f"'{ast.unparse(node)}' in line {first + node.lineno - 1}" for node in _suspects(tree)]


def far_reads_of(cls: type, libraries: tuple[str, ...]) -> list[str] | None:
    """Return what :func:`far_reads` finds in ``forward`` of a class and in the methods that it calls on ``self``.

    Args:
        cls: The class.
        libraries: Beginnings of the names of modules whose methods are not read.

    Returns:
        What was found, or ``None`` if ``forward`` has no source to read.
    """
    methods = [cls.forward]  # type: ignore[attr-defined]
    found = far_reads(methods[0])
    if found is None:
        return None
    for method in methods:  # grows meanwhile
        for name in sorted(_called_on_self(method)):
            other = _written_method(cls, name, libraries)
            if other is not None and other not in methods:
                methods.append(other)
                found += far_reads(other) or []
    return found


def _written_method(cls: type, name: str, libraries: tuple[str, ...]) -> Callable[..., Any] | None:
    """Return a method if a class of the user's has it in its own source; PyG sets generated ones, of modules of their own."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
    method = vars(owner).get(name)
    is_written = inspect.isfunction(method) and method.__module__ == owner.__module__
    return method if is_written and not f"{owner.__module__}.".startswith(libraries) else None


def _source_of(function: Callable[..., Any]) -> tuple[ast.AST, int] | None:
    """Return the parsed source of a function and the line it begins in."""
    try:
        lines, first = inspect.getsourcelines(function)
        with _PARSER:
            return ast.parse(textwrap.dedent("".join(lines))), first
    except (OSError, TypeError, SyntaxError):
        return None


def _called_on_self(function: Callable[..., Any]) -> set[str]:
    source = _source_of(function)
    calls = (node for node in ast.walk(source[0]) if isinstance(node, ast.Call)) if source else ()
    return {name for call in calls if (name := _method_of_self(call)) is not None}


def _method_of_self(call: ast.Call) -> str | None:
    """Return ``name`` of a call ``self.name(...)``."""
    called = call.func
    is_own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
    return called.attr if is_own and isinstance(called, ast.Attribute) else None


def _suspects(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            suspect = _is_far_call(node)
        elif isinstance(node, ast.BinOp):
            suspect = isinstance(node.op, ast.MatMult) and (
                _is_adjacency(node.left) or _sums_over_rows(node.left, node.right)
            )
        else:
            suspect = isinstance(node, ast.Subscript) and _is_source(node.slice)
        if suspect:
            assert isinstance(node, ast.expr)
            yield node


def _is_far_call(call: ast.Call) -> bool:
    if _method_of_self(call) is not None:  # self.norm(x): a method, read for itself, or a module, checked for itself
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return (
        name.startswith(_WHOLE_GRAPH)
        or name in _OF_THE_GRAPH
        or (name in _BY_GRAPH and any(map(_is_batch, (*call.args, *(k.value for k in call.keywords)))))
        or (name in _PRODUCTS and any(map(_is_adjacency, [*call.args, getattr(call.func, "value", None)])))
        or (name in _PRODUCTS and len(call.args) == 2 and _sums_over_rows(*call.args))
        or (name == "einsum" and _contracts_rows(call.args))
        or (name in _BY_NODE and any(map(_is_source, call.args)))
        or (name in _REDUCTIONS and _may_cross_rows(call, name))
    )


def _is_batch(node: ast.expr) -> bool:
    """Whether an expression is the vector that numbers the graphs of a batch: ``batch`` or ``data.batch``."""
    return getattr(node, "id", getattr(node, "attr", "")) == "batch"


def _sums_over_rows(left: ast.expr, right: ast.expr) -> bool:
    """Whether a product sums over rows (``x.t() @ y``) or pairs them (``x @ x.t()``); parameters (``self.w.t()``) have none."""
    first, second = _transposed(left), _transposed(right)
    return (first is not None and not _is_of_self(first)) or (
        second is not None and ast.unparse(second) == ast.unparse(left) and not _is_of_self(left)
    )


def _transposed(node: ast.expr) -> ast.expr | None:
    """Return what ``node`` is the matrix transpose of, ``None`` if it is no transpose."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t" and not node.args:
        return node.func.value
    return node.value if isinstance(node, ast.Attribute) and node.attr == "T" else None


def _is_of_self(node: ast.expr) -> bool:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"


def _contracts_rows(arguments: list[ast.expr]) -> bool:
    """Whether an equation of einsum sums over the first dimension of an operand that is no parameter."""
    if not arguments or not isinstance(arguments[0], ast.Constant) or not isinstance(arguments[0].value, str):
        return False
    terms, arrow, result = arguments[0].value.replace(" ", "").partition("->")
    pairs = zip(terms.split(","), arguments[1:], strict=False)
    return bool(arrow) and any(term[:1] not in result and not _is_of_self(operand) for term, operand in pairs)


def _is_adjacency(node: ast.AST | None) -> bool:
    """Whether an expression is the adjacency: ``adj_t``, ``batch.adj_t``, an ``EdgeIndex``."""
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name.startswith("adj") or "edge_index" in name


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
