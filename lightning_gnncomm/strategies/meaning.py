"""Logged values, metrics and predictions over the whole graph."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.pairs import id_key, pair_keys
from lightning_gnncomm.graph.typed import Graph
from lightning_gnncomm.strategies.provenance import Piece, pieces_of

__all__ = ["ALREADY_GLOBAL", "GraphLog", "gather_predictions", "mask_counts"]

ALREADY_GLOBAL = object()
"""Stands for a process group: a value reduced over it is the same on all ranks already and stays as it is."""

STAGES = ("train", "val", "test")


def mask_counts(part: Graph, loss_mask: str = "train_mask") -> dict[str, int]:
    """Return this rank's number of nodes in each mask: ``train``, ``val``, ``test``, ``loss``, and of ``all`` nodes.

    Nodes of a heterogeneous part count if they are of a type with a mask, together if several types have one. A mask that no type
    has, or that is several of, counts all nodes.
    """
    names = {**{stage: f"{stage}_mask" for stage in STAGES}, "loss": loss_mask}
    stores = list(part.node_stores)
    masked = [store for store in stores if any(name in store for name in names.values())]
    counts = {"all": sum(int(store.num_nodes or 0) for store in masked or stores)}
    for name, attribute in names.items():
        masks = [mask for store in stores if _is_mask(mask := store.get(attribute))]
        counts[name] = sum(int(mask.sum()) for mask in masks) if masks else counts["all"]
    return counts


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool and value.dim() == 1


class GraphLog:
    """Makes scalars given to ``self.log`` values over the whole graph, as they are on one device.

    A scalar that was computed in the step is put together term by term from what its means and sums run over on each rank. One
    of unknown origin (a Python number, say) is taken as a mean over ``batch_size`` nodes, if that is given, else over those of the
    mask that its name begins with (``train``, ``val``, ``test``), else of the running stage's mask. ``reduce_fx`` ``"sum"``,
    ``"min"`` and ``"max"`` reduce over ranks in that way. torchmetrics objects synchronise themselves.

    Args:
        module: The module whose ``log`` is wrapped.
        wire: Returns the wire, ``None`` while there is one rank.
    """

    def __init__(self, module: pl.LightningModule, wire: Callable[[], Wire | None]) -> None:
        self._module, self._wire, self._log = module, wire, module.log
        self.counts: dict[str, int] = {}
        module.log = self  # type: ignore[method-assign]

    def revert(self) -> None:
        """Give the module its own ``log`` back."""
        self._module.__dict__.pop("log", None)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphLog:
        return self

    def __call__(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as :meth:`lightning.pytorch.LightningModule.log` does, with a value over the whole graph."""
        wire = self._wire()
        positional = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")
        kwargs |= dict(zip(positional, args, strict=False))
        scalar = isinstance(value, (numbers.Number, Tensor))
        if not scalar or kwargs.get("rank_zero_only") or self._module._trainer is None:
            self._log(name, value, **kwargs)
            return
        already = {"sync_dist": True, "sync_dist_group": ALREADY_GLOBAL}
        if wire is None:
            self._log(name, value, **(kwargs | already))
            return
        value = value if isinstance(value, Tensor) else torch.tensor(value, device=self._module.device)
        reduce_fx = getattr(kwargs.get("reduce_fx", "mean"), "__name__", kwargs.get("reduce_fx", "mean"))
        if reduce_fx in ("sum", "min", "max"):
            total, count = wire.all_reduce(value.detach(), str(reduce_fx)), 1
        elif pieces := pieces_of(value):
            total, count = _merge(pieces, value, wire), 1
        else:
            total, count = self._mean(name, value, kwargs.get("batch_size"), wire)
        self._log(name, total, **(kwargs | already | {"batch_size": max(count, 1)}))

    def _mean(self, name: str, value: Tensor, batch_size: int | None, wire: Wire) -> tuple[Tensor, int]:
        """Return the mean over the nodes of all ranks, and their number, of a value of unknown origin."""
        stage = next((s for s in STAGES if name.lower().startswith(s)), None) or self._running_stage()
        by_mask = float(self.counts.get(stage, 1))
        given = by_mask if batch_size is None else float(batch_size)
        shares = [0.0 if weight == 0 else float(value) * weight for weight in (by_mask, given)]
        local = torch.tensor([by_mask, given, *shares], dtype=torch.float64, device=value.device)
        masked, counted, masked_share, counted_share = wire.all_reduce(local).tolist()
        # A batch size of one on every rank is one graph each, not one node.
        use_size = batch_size is not None and counted != wire.world_size
        count, total = (counted, counted_share) if use_size else (masked, masked_share)
        return _like(value, total / count if count else math.nan), math.ceil(count)

    def _running_stage(self) -> str:
        trainer = self._module.trainer
        if trainer.training:
            return "train"
        return "test" if trainer.testing else "val"


def _merge(pieces: list[Piece], value: Tensor, wire: Wire) -> Tensor:
    """Put a scalar together from its terms on all ranks."""
    local = [
        (
            0.0 if piece.num_rows == 0 else float(piece.value) * piece.num_rows,
            piece.num_rows,
            float(piece.value),
            float(piece.kind == "sum"),
            float(piece.kind == "constant"),
        )
        for piece in pieces
    ]
    total = 0.0
    sums = wire.all_reduce(torch.tensor(local, dtype=torch.float64, device=value.device))
    for share, count, plain, is_sum, is_constant in sums.tolist():
        if is_sum:
            total += plain
        elif is_constant:
            total += plain / is_constant
        else:
            total += share / count if count else math.nan
    return _like(value, total)


def _like(value: Tensor, number: float) -> Tensor:
    dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return torch.tensor(number, dtype=dtype, device=value.device)


def synchronise_metrics(module: torch.nn.Module) -> Callable[[], None]:
    """Let torchmetrics objects return values over all ranks from ``forward`` too; return what reverts it."""
    changed = [metric for metric in module.modules() if isinstance(metric, Metric) and not metric.dist_sync_on_step]
    for metric in changed:
        metric.dist_sync_on_step = True

    def revert() -> None:
        for metric in changed:
            metric.dist_sync_on_step = False

    return revert


def gather_predictions(output: Any, part: Graph, wire: Wire) -> Any:
    """Return predictions of all nodes, or pairs of nodes, in the original order from those of this rank.

    Args:
        output: Tensor, or (nested) tuple, list or mapping of tensors, with a row per own node, or per own node of one of the
            masks (``out[batch.test_mask]``). Of a heterogeneous part, what is under the name of a node type has rows of that type;
            other tensors are of the first type that fits, types with masks before others. A row per pair of an
            ``edge_label_index`` fits too.
        part: The part they were computed from.
        wire: The ranks to gather from; every rank gets everything.
    """
    stores = [*part.node_stores, *(store for store in part.edge_stores if "n_id" not in store)]
    return _gather(output, sorted(stores, key=lambda store: not any(f"{s}_mask" in store for s in STAGES)), wire)


def _gather(output: Any, stores: Sequence[Any], wire: Wire) -> Any:
    if isinstance(output, Mapping):
        of_type = {store._key: [store] for store in stores if store._key is not None}
        return type(output)(  # type: ignore[call-arg]
            (key, _gather(value, of_type.get(key, stores), wire)) for key, value in output.items()
        )
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_gather(value, stores, wire) for value in output))
    if isinstance(output, (tuple, list)):
        return type(output)(_gather(value, stores, wire) for value in output)
    return _gather_rows(output, stores, wire) if isinstance(output, Tensor) else output


def _gather_rows(rows: Tensor, stores: Sequence[Any], wire: Wire) -> Tensor:
    own_ids = _matching_ids(rows, stores, wire)
    if own_ids is None:
        rank_zero_warn(
            f"predict_step returned a tensor of shape {tuple(rows.shape)}, which has neither a row per node, nor one per node of "
            f"train_mask, val_mask or test_mask, nor one per pair of edge_label_index, so it stays what this rank computed."
        )
        return rows
    ids = torch.cat(wire.all_gather(own_ids))
    return torch.cat(wire.all_gather(rows))[ids.argsort()]


def _matching_ids(rows: Tensor, stores: Sequence[Any], wire: Wire) -> Tensor | None:
    """Return the ids of the own nodes that rows belong to; a choice must fit on all ranks."""
    size = rows.size(0) if rows.dim() else -1
    candidates = []
    for store in stores:
        masks = [mask for stage in ("test", "val", "train") if _is_mask(mask := store.get(f"{stage}_mask"))]
        nodes = [store.n_id] if "n_id" in store else []
        candidates += [*nodes, *(store.n_id[mask] for mask in masks)]
    candidates += [store[id_key(key)] for store in stores for key in pair_keys(store)]
    fits = torch.tensor([size == ids.numel() for ids in candidates], device=candidates[0].device).long()
    everywhere = wire.all_reduce(fits, "min").tolist()
    return next((ids for ids, fit in zip(candidates, everywhere, strict=True) if fit), None)
