"""Rows of node pairs read outside of layers: ``z[edge_label_index[0]]``, where the first node may lie on another rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_gnncomm.graph.pairs import is_pair_key
from lightning_gnncomm.halo.context import HaloContext, current_scope
from lightning_gnncomm.halo.relation import Relation

__all__ = ["PairReads"]

_NOTE = "_gnncomm_pairs"


class _Note(NamedTuple):
    """What an index tensor holds: pairs ``[2, L]``, or their first nodes ``[L]``; and what these pairs join."""

    holds: Literal["pairs", "firsts"]
    relation: Relation


class PairReads(TorchFunctionMode):
    """Lets a model read node rows by the first nodes of the batch's pairs, while it is entered.

    What is made of ``edge_label_index`` (a selection, pairs joined with sampled ones) is followed. Where node rows ``[n, F]`` are
    indexed by first nodes, they get their halo rows, in one exchange however often they are read. Second nodes are own ones.

    Args:
        context: The shared state of the model's hooks, in a step.
        tensors: The part's attributes, ``part.to_dict()``.
    """

    def __init__(self, context: HaloContext, tensors: Mapping[Any, Any]) -> None:
        super().__init__()
        self._context = context
        self._roots: dict[int, _Note] = {}
        stores = {None: tensors} | {key: value for key, value in tensors.items() if isinstance(key, tuple)}
        for key, store in stores.items():
            for name, value in store.items():
                if isinstance(name, str) and is_pair_key(name) and isinstance(value, Tensor):
                    self._roots[id(value)] = _Note("pairs", context.relations.of_edge_type(key))

    @property
    def is_needed(self) -> bool:
        """Whether the part has pairs."""
        return bool(self._roots)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function on extended rows if it reads these by pairs, and note what its result holds."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "index_select") and current_scope() is None:
            args = self._extended(name, args)
        result = func(*args, **kwargs)
        note = self._first_note(args)
        if note is not None:
            self._mark(name, args, note, result)
        return result

    def _note_of(self, value: Any) -> _Note | None:
        return self._roots.get(id(value)) or getattr(value, _NOTE, None) if isinstance(value, Tensor) else None

    def _first_note(self, args: tuple[Any, ...]) -> _Note | None:
        values = [item for arg in args for item in (arg if isinstance(arg, (tuple, list)) else [arg])]
        return next((note for value in values if (note := self._note_of(value)) is not None), None)

    def _extended(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with halo rows, where rows of nodes are read by first nodes."""
        x, index = args[0], args[-1]
        if isinstance(index, tuple) and index:
            index = index[0]
        note = self._note_of(index)
        by_rows = name == "__getitem__" or (len(args) == 3 and args[1] == 0)
        if note is None or note.holds != "firsts" or not by_rows:
            return args
        context = self._context
        if x.dim() == 0 or x.size(0) != note.relation.plan.num_local or self._note_of(x) is not None:
            return args
        before, context.current = context.current, note.relation
        try:
            return (context.extend(x, "edge_label_index", "rows"), *args[1:])
        finally:
            context.current = before

    def _mark(self, name: str, args: tuple[Any, ...], note: _Note, result: Any) -> None:
        """Note what a result holds that was made of noted tensors."""
        if isinstance(result, (tuple, list)):  # src, dst = edge_label_index
            if note.holds == "pairs" and name in ("unbind", "__iter__"):
                self._keep(result[0], note._replace(holds="firsts"))
            return
        if not isinstance(result, Tensor) or result.dtype not in (torch.int32, torch.int64):
            return
        if note.holds == "firsts" or (result.dim() == 2 and result.size(0) == 2):
            self._keep(result, note)
        elif result.dim() == 1 and _takes_first_row(name, args):
            self._keep(result, note._replace(holds="firsts"))

    @staticmethod
    def _keep(result: Tensor, note: _Note) -> None:
        setattr(result, _NOTE, note)


def _takes_first_row(name: str, args: tuple[Any, ...]) -> bool:
    index = args[1] if name == "__getitem__" else args[2] if name == "select" and args[1] == 0 else None
    row = index[0] if isinstance(index, tuple) and index else index
    return isinstance(row, int) and row in (0, -2)
