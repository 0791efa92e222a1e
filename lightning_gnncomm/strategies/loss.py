"""Weights of a loss: each rank's share of the loss over the whole graph, set where the loss reduces over rows.

A mean over this rank's rows is not its share of the mean over all rows, and a rank's gradients cannot be mended afterwards, since
they already contain those that came back for halo rows. So the gradient that enters each reduction of the loss is scaled, before
anything flows back: by ``P * n_r / n`` for a mean over ``n_r`` of ``n`` rows, by ``P`` for a sum (DDP averages over ``P`` ranks), by 1
for terms of parameters alone. Reductions are read off the autograd graph, so counts are right for any mask, class weights
(the weighted mean's own denominator) and any sum of such terms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.comm.wire import Wire

__all__ = ["Term", "UnknownReductionError", "loss_terms", "weighted"]

Kind = Literal["mean", "sum", "constant"]

_LINEAR = frozenset(
    {"Add", "Sub", "Neg", "Mul", "Div", "View", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Stack", "Alias"}
)
_DDP_SINK = "_DDPSink"
"""What DDP with find_unused_parameters passes the outputs of a step through; the loss must be the only one with a gradient."""
_OF_PARAMETERS = _LINEAR | {
    "Pow",
    "Abs",
    "Exp",
    "Log",
    "Sqrt",
    "Clamp",
    "Sum",
    "Mean",
    "Norm",
    "LinalgVectorNorm",
    "Cat",
}


class UnknownReductionError(ValueError):
    """The loss reduces over rows in a way that cannot be read off its autograd graph."""


class Term(NamedTuple):
    """A reduction inside a loss.

    Args:
        node: The autograd node whose incoming gradient is scaled.
        kind: How it reduces over this rank's rows; ``"constant"`` for terms of parameters alone.
        num_rows: Rows (or their weight) that a mean divides by.
        divides: Whether ``node`` is the division of a sum by ``num_rows``, which must not become ``0 / 0``.
    """

    node: Any
    kind: Kind
    num_rows: float = 0.0
    divides: bool = False


def loss_terms(loss: Tensor, divided: bool = False, counts: Collection[float] = ()) -> list[Term]:
    """Return the reductions that a scalar loss is a linear combination of.

    Args:
        loss: Scalar with an autograd graph.
        divided: Whether the last operation divided the user's loss by a constant, as Lightning does for accumulated batches.
        counts: Divisors known to be a number of rows, such as the training nodes of this rank.

    Raises:
        UnknownReductionError: If the loss is no such combination, naming the operation.

    Example:
        >>> out = torch.ones(4, 3) @ torch.ones(3, 2, requires_grad=True)
        >>> [(term.kind, term.num_rows) for term in loss_terms(out.pow(2).mean() + 0.1 * out.sum())]
        [('mean', 8.0), ('sum', 0.0)]
    """
    node = loss.grad_fn
    if node is not None and divided and _name(node) == "Div":
        node = _inputs(node)[0]
    return [] if node is None else list(_terms(node, counts))


def _name(node: Any) -> str:
    return str(node.name()).removeprefix("torch::autograd::").rstrip("0123456789").removesuffix("Backward")


def _inputs(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _terms(node: Any, counts: Collection[float]) -> Iterator[Term]:
    name = _name(node)
    if _parameters_only(node):
        yield Term(node, "constant")
    elif (reduction := getattr(node, "_saved_reduction", 0)) in (1, 2):
        yield Term(node, "mean" if reduction == 1 else "sum", _loss_count(node))
    elif name in ("Mean", "Sum"):
        yield from _reduction(node, counts)
    elif name == "Div" and len(_inputs(node)) == 1:
        yield from _division(node, counts)
    elif name == "Mul" and len(_inputs(node)) == 2:
        yield _product(node, counts)
    elif name == _DDP_SINK and len(_inputs(node)) == 1:
        yield from _terms(_inputs(node)[0], counts)
    elif name in _LINEAR and name != "Div":
        for following in _inputs(node):
            yield from _terms(following, counts)
    else:
        raise UnknownReductionError(
            f"The loss is not a sum of means and sums over rows: found '{node.name()}'. Say how it reduces over the nodes of the "
            f"graph with loss_reduction='mean' (over the nodes of 'loss_mask') or loss_reduction='sum' of the strategy."
        )


def _loss_count(node: Any) -> float:
    """Return the denominator of a torch loss with reduction 'mean'."""
    if hasattr(node, "_saved_total_weight"):
        return float(node._saved_total_weight)
    return float(node._saved_self.numel())


def _rows_reduced(node: Any) -> bool:
    """Whether a Sum or Mean node reduces over dimension 0 (all dimensions, if it has no ``dim``)."""
    return 0 in _reduced_dims(node)


def _reduced_dims(node: Any) -> list[int]:
    rank = len(node._saved_self_sym_sizes)
    dims = getattr(node, "_saved_dim", None) or range(rank)
    return [_wrap(dim, rank) for dim in dims]


def _wrap(dim: int, rank: int) -> int:
    # Autograd shows negative dimensions as unsigned numbers.
    signed = dim - (1 << 64) if dim >= (1 << 63) else dim
    return signed + rank if signed < 0 else signed


def _reduction(node: Any, counts: Collection[float]) -> Iterator[Term]:
    if _rows_are_gone(node):
        # What is left is a fixed number of values, over which this node is linear.
        for following in _inputs(node):
            yield from _terms(following, counts)
        return
    sizes = node._saved_self_sym_sizes
    if not _rows_reduced(node):
        raise UnknownReductionError(f"The loss reduces dimensions of a tensor {list(sizes)} but never its rows.")
    if _name(node) == "Sum":
        yield Term(node, "sum")
    else:
        yield Term(node, "mean", float(torch.Size([sizes[dim] for dim in _reduced_dims(node)]).numel()))


def _rows_are_gone(node: Any) -> bool:
    """Whether rows were reduced below a reduction already, with only linear operations in between."""
    stack = _inputs(node)
    while stack:
        following = stack.pop()
        name = _name(following)
        if getattr(following, "_saved_reduction", 0) in (1, 2) or (
            name in ("Mean", "Sum") and _rows_reduced(following)
        ):
            return True
        if name in _LINEAR:
            stack.extend(_inputs(following))
    return False


def _division(node: Any, counts: Collection[float]) -> Iterator[Term]:
    divisor = getattr(node, "_saved_other", None)
    below = _inputs(node)[0]
    value = float(divisor) if isinstance(divisor, Tensor) and divisor.numel() == 1 else None
    terms = list(_terms(below, counts))
    if all(term.kind != "sum" for term in terms):
        yield from terms
    elif value is not None and len(terms) == 1 and (value in counts or _is_count(terms[0], value)):
        yield Term(node, "mean", value, divides=True)
    else:
        raise UnknownReductionError(
            f"The loss is a sum over rows divided by {value}, which may be a number of rows or a constant. Say which with "
            f"loss_reduction='mean' or loss_reduction='sum' of the strategy."
        )


def _is_count(term: Term, value: float) -> bool:
    """Whether a sum is divided by the number of rows or values that it runs over."""
    sizes = getattr(term.node, "_saved_self_sym_sizes", None)
    if sizes is None:
        sizes = getattr(term.node, "_saved_self", torch.empty(0)).shape
    return len(sizes) > 0 and value in (float(sizes[0]), float(torch.Size(sizes).numel()))


def _product(node: Any, counts: Collection[float]) -> Term:
    """Return the one term of a product with a parameter (a learned weight), scaled where both are seen."""
    factors = [following for following in _inputs(node) if not _parameters_only(following)]
    terms = [term for factor in factors for term in _terms(factor, counts)]
    if len(factors) == 1 and len(terms) == 1 and not terms[0].divides:
        return terms[0]._replace(node=node)
    raise UnknownReductionError(
        "The loss multiplies terms that both depend on the nodes, which no weight per rank makes a loss over the whole graph."
    )


def _parameters_only(node: Any) -> bool:
    """Whether a value is computed from parameters alone (weight penalties, learned weights of terms)."""
    stack, seen = [node], set()
    while stack:
        following = stack.pop()
        if following in seen:
            continue
        seen.add(following)
        name = _name(following)
        if name != "AccumulateGrad" and name not in _OF_PARAMETERS:
            return False
        stack.extend(_inputs(following))
    return True


@contextmanager
def weighted(loss: Tensor, terms: list[Term], wire: Wire) -> Iterator[None]:
    """Scale the gradients entering ``terms`` while a backward pass of ``loss`` runs; every rank must take part.

    Raises:
        ValueError: If a mean runs over no rows on any rank, or ranks found different terms.
    """
    kinds = "".join(term.kind[0] for term in terms)
    signature = int.from_bytes(hashlib.blake2b(kinds.encode(), digest_size=6).digest(), "little")
    bounds = wire.all_reduce(torch.tensor([signature, -signature], device=loss.device), "max")
    if int(bounds[0]) != -int(bounds[1]):
        raise ValueError(
            f"Ranks computed losses of different forms; this rank's terms are {[term.kind for term in terms]}."
        )
    totals = wire.all_reduce(torch.tensor([term.num_rows for term in terms], dtype=torch.float64, device=loss.device))
    handles = []
    for term, total in zip(terms, totals.tolist(), strict=True):
        if term.kind == "mean" and total == 0:
            raise ValueError("The loss is a mean over rows of which no rank has any. Is the training mask empty?")
        if term.divides:
            handles.append(term.node.register_hook(_replace_division(wire.world_size / total)))
        elif term.kind != "constant":
            share = term.num_rows / total if term.kind == "mean" else 1.0
            handles.append(term.node.register_prehook(_scale(wire.world_size * share)))
            if share == 0.0:
                handles.append(term.node.register_hook(_replace_by_zero))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _scale(factor: float) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def hook(grad_outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(grad * factor for grad in grad_outputs)

    return hook


def _replace_division(factor: float) -> Callable[..., tuple[Tensor, ...]]:
    """``grad / count * (P * count / total)`` without the division, which is 0 / 0 on a rank without rows."""

    def hook(grad_inputs: tuple[Tensor, ...], grad_outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (grad_outputs[0] * factor, *grad_inputs[1:])

    return hook


def _replace_by_zero(
    grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """A mean over no rows is NaN, and NaN times a share of 0 would reach parameters that weigh it."""
    return tuple(None if grad is None else torch.zeros_like(grad) for grad in grad_inputs)
