"""Where a scalar comes from: over how many of this rank's rows it is a mean or a sum.

While a step runs, every torch function that reduces to a scalar leaves a note on its result, and sums and multiples of such scalars
carry the notes on. A value given to ``self.log`` can then be put together from all ranks term by term, with or without gradients:
a class-weighted loss by its weights, an accuracy by its masked nodes, a sum of two losses by the rows of each.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Piece", "ReductionRecorder", "pieces_of"]

_NOTE = "_gnncomm_pieces"
_CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_VALUE_LOSSES = frozenset(
    {
        *(
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
        ),
        *("gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss", "hinge_embedding_loss", "kl_div"),
    }
)
_SAME = frozenset(
    {"detach", "clone", "to", "float", "double", "squeeze", "view", "reshape", "cpu", "cuda", "half", "bfloat16"}
)


class Piece(NamedTuple):
    """A term of a scalar.

    Args:
        value: This rank's value of the term, a scalar tensor.
        kind: How it reduces over this rank's rows; ``"constant"`` if it does not.
        num_rows: Rows, or their weight, that a mean divides by.
        sizes: Numbers of rows and of values that a sum runs over: divided by one of these it is a mean.
    """

    value: Tensor
    kind: Literal["mean", "sum", "constant"]
    num_rows: float = 0.0
    sizes: tuple[float, ...] = ()


def pieces_of(value: Tensor) -> list[Piece]:
    """Return the terms noted on a scalar, none if it was not seen to reduce."""
    return getattr(value, _NOTE, [])


class ReductionRecorder(TorchFunctionMode):
    """Notes on scalars what they reduce, while it is entered.

    Args:
        counts: Divisors known to be a number of rows.

    Example:
        >>> with ReductionRecorder():
        ...     hits = torch.tensor([True, False, True]).float().mean()
        >>> [(piece.kind, piece.num_rows) for piece in pieces_of(hits)]
        [('mean', 3.0)]
    """

    def __init__(self, counts: Collection[float] = ()) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function and note what its scalar result reduces."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").rstrip("_").removeprefix("__").removeprefix("true_")
        # Read before the call, which may change its first argument in place.
        before = [pieces_of(argument) for argument in args if isinstance(argument, Tensor)]
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            pieces = self._note(name, func, args, kwargs, before, result)
            if pieces:
                setattr(result, _NOTE, pieces)
            elif hasattr(result, _NOTE):
                delattr(result, _NOTE)
        return result

    def _note(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: list[list[Piece]],
        result: Tensor,
    ) -> list[Piece]:
        first = args[0] if args else None
        if name == "stack" and result.dim() == 1 and isinstance(first, (tuple, list)):
            noted = [pieces_of(scalar) for scalar in first]
            return [piece for pieces in noted for piece in pieces] if all(noted) else []
        if name in ("mean", "sum") and isinstance(first, Tensor) and first.dim() > 0:
            return _of_reduction(name, first, before[0], result, kwargs.get("dim", args[1] if len(args) > 1 else None))
        if result.dim() > 0:
            return []
        value = result.detach()
        if name in _CLASS_LOSSES or name in _VALUE_LOSSES:
            return _of_loss(name, inspect.signature(func).bind(*args, **kwargs).arguments, value)
        if not any(before):
            return []
        if name in _SAME:
            return before[0]
        return self._of_arithmetic(name, args, before, value)

    def _of_arithmetic(self, name: str, args: tuple[Any, ...], before: list[list[Piece]], value: Tensor) -> list[Piece]:
        if name in ("neg", "add", "sub", "rsub", "radd"):
            left, right = args[0], args[1] if len(args) > 1 else 0.0
            signs = {"neg": (-1, 1), "sub": (1, -1), "rsub": (-1, 1)}.get(name, (1, 1))
            own = before[0] if isinstance(left, Tensor) else []
            other = before[-1] if isinstance(right, Tensor) else []
            return _scaled(own or _constant(left, value), signs[0]) + _scaled(
                other or _constant(right, value), signs[1]
            )
        if name in ("mul", "rmul", "div") and len(args) == 2:
            return self._of_multiple(name, args, before, value)
        return []

    def _of_multiple(self, name: str, args: tuple[Any, ...], before: list[list[Piece]], value: Tensor) -> list[Piece]:
        left, right = args
        noted = [pieces_of(argument) if isinstance(argument, Tensor) else [] for argument in args]
        if name == "div":
            divisor, pieces = float(right), noted[0]
            if len(pieces) == 1 and pieces[0].kind == "sum":
                counted = bool(noted[1]) or divisor in pieces[0].sizes or divisor in self._counts
                return [Piece(value, "mean", divisor)] if counted else [pieces[0]._replace(value=value)]
            return [] if noted[1] else _scaled(pieces, 1.0 / divisor if divisor else 0.0)
        if noted[0] and noted[1]:
            return []
        return _scaled(noted[0], float(right)) if noted[0] else _scaled(noted[1], float(left))


def _of_reduction(name: str, x: Tensor, before: list[Piece], result: Tensor, dim: Any) -> list[Piece]:
    """Note a mean or sum; of a vector that was noted itself, what is left is a fixed number of its values."""
    value = result.detach()
    if before and result.dim() == 0:
        if len(before) == 1 and before[0].value.dim() == 1:  # columns whose rows were reduced
            return [before[0]._replace(value=value)]
        return _scaled(before, 1.0 / x.numel() if name == "mean" else 1.0)  # a stack of scalars
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    if 0 not in [d % x.dim() for d in dims] or result.dim() > 1:
        return []
    sizes = (float(x.size(0)), float(math.prod(x.size(d) for d in dims)))
    return [Piece(value, "mean", sizes[1]) if name == "mean" else Piece(value, "sum", sizes=sizes)]


def _scaled(pieces: list[Piece], factor: float) -> list[Piece]:
    return pieces if factor == 1 else [piece._replace(value=piece.value * factor) for piece in pieces]


def _constant(value: Any, like: Tensor) -> list[Piece]:
    number = float(value)
    return [Piece(torch.full_like(like, number), "constant")] if number else []


def _of_loss(name: str, call: dict[str, Any], value: Tensor) -> list[Piece]:
    reduction = call.get("reduction", "mean")
    rows, target = call["input"], call.get("target")
    if reduction == "sum":
        return [Piece(value, "sum", sizes=(float(rows.size(0)), float(rows.numel())))]
    if reduction == "batchmean":
        return [Piece(value, "mean", float(rows.size(0)))]
    if reduction != "mean":
        return []
    if name in _VALUE_LOSSES or target is None:
        return [Piece(value, "mean", float(rows.numel()))]
    if target.is_floating_point():  # class probabilities
        return [Piece(value, "mean", float(rows.size(0)))]
    labels = target[target != call.get("ignore_index", -100)]
    weight = call.get("weight")
    return [Piece(value, "mean", float(labels.numel() if weight is None else weight[labels].sum()))]
