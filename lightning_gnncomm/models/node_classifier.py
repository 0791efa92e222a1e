"""A ready LightningModule that classifies nodes with any PyG model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch_geometric.data import Data
from torchmetrics import Metric

from lightning_gnncomm.models.architectures import build_model, call_model
from lightning_gnncomm.models.labels import Stage, mean_loss, select_labelled
from lightning_gnncomm.models.metrics import METRICS, build_metric, update_metric

__all__ = ["NodeClassifier"]

_UNKNOWN = -1


class NodeClassifier(L.LightningModule):
    """Classifies the nodes of a graph that comes as one batch, on one device or over several ranks.

    The loss is cross-entropy, or binary cross-entropy with logits for several labels a node. It logs ``train_loss``,
    ``val_loss``, ``test_loss`` and each metric as ``val_acc``, ``test_acc`` and so on. ``predict`` returns the logits
    of every node, shape ``[n, C]``.

    A stage uses the nodes of its mask (``train_mask``, ``val_mask``, ``test_mask``) that have a label. Nodes labelled
    -1 (any negative entry or NaN, for several labels) count nowhere. A graph without that mask uses all its labelled
    nodes.

    Args:
        model: A module called with ``x`` and ``edge_index`` (and ``edge_weight``, ``edge_attr`` if it names them), or
            with the whole graph if its first argument is named ``data``; or one of ``GCN``, ``GraphSAGE``, ``GAT``,
            ``GIN``, ``PNA``, ``EdgeCNN``, built here from the arguments below.
        num_features: Columns of ``x``. Asked of the data module if not given.
        num_classes: Number of classes ``C``. Asked of the model (``out_channels``) or the data module if not given.
        multi_label: Whether a node has several labels, ``y`` of shape ``[n, C]``. Asked of the data module if not
            given.
        hidden_channels: Width of the hidden layers of a model given by name.
        num_layers: Number of its message-passing layers.
        dropout: Its probability of dropping a hidden value.
        norm: Its normalisation between layers, e.g. ``"batch_norm"``.
        model_kwargs: Further arguments of a model given by name, e.g. ``{"heads": 4}``; PNA needs ``deg``.
        metrics: Any of ``accuracy``, ``f1``, ``auroc``.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        optimizer: Another optimizer, called with the parameters; then ``lr`` and ``weight_decay`` are not used.
        lr_scheduler: A scheduler of the learning rate, called with the optimizer. One that watches a metric watches its
            ``monitor``, or ``val_loss``.

    Raises:
        ValueError: If a name is unknown, if a size is neither given nor known to the data module, or if a stage on
            one device has no labelled node.

    Example:
        >>> classifier = NodeClassifier("GCN", num_features=8, num_classes=3)
        >>> classifier.model
        GCN(8, 3, num_layers=2)

    A module of your own is not stored in checkpoints; pass it again:
    ``NodeClassifier.load_from_checkpoint(path, model=MyModel())``. Models given by name, or by ``class_path`` in
    YAML, need nothing.
    """

    def __init__(
        self,
        model: str | nn.Module,
        num_features: int | None = None,
        num_classes: int | None = None,
        multi_label: bool | None = None,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        metrics: Sequence[str] = ("accuracy",),
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        self._save_plain_hyperparameters(model)
        for name in metrics:
            if name not in METRICS:
                raise ValueError(f"Expected metrics out of {sorted(METRICS)}, got {name!r}.")
        self.model: nn.Module | None = model if isinstance(model, nn.Module) else None
        self.metrics = nn.ModuleDict()
        self.num_features, self.num_classes, self.multi_label = num_features, num_classes, multi_label
        self._metric_names = tuple(metrics)
        self._build: partial[nn.Module] | None = None
        if isinstance(model, str):
            self._build = partial(
                build_model,
                model,
                hidden_channels=hidden_channels,
                num_layers=num_layers,
                dropout=dropout,
                norm=norm,
                model_kwargs=model_kwargs,
            )
        self._optimizer = optimizer or partial(torch.optim.Adam, lr=lr, weight_decay=weight_decay)
        self._lr_scheduler = lr_scheduler
        if num_features is not None and num_classes is not None:
            self._build_model()

    def _save_plain_hyperparameters(self, model: str | nn.Module) -> None:
        # From a LightningCLI they are the configuration, where even modules are plain dictionaries. From a script
        # they are objects, which would make the checkpoint unreadable without trusting pickle.
        if _given_hyperparameters.get() is not None:
            ignored = []
        else:
            ignored = ["optimizer", "lr_scheduler"] + ([] if isinstance(model, str) else ["model"])
        self.save_hyperparameters(ignore=ignored, frame=sys._getframe(1))

    def configure_model(self) -> None:
        """Build what needed sizes from the data module; Lightning calls it after the data is set up."""
        datamodule = None if self._trainer is None else getattr(self._trainer, "datamodule", None)
        for name in ("num_features", "num_classes", "multi_label"):
            if getattr(self, name) is None:
                own = getattr(self.model, "out_channels", None) if name == "num_classes" else None
                setattr(self, name, own if isinstance(own, int) else getattr(datamodule, name, None))
            self.hparams[name] = getattr(self, name)
        self._build_model()
        self._build_metrics()

    def _build_model(self) -> None:
        if self._build is not None and self.model is None:
            self.model = self._build(self._known("num_features"), self._known("num_classes"))

    def _build_metrics(self) -> None:
        for stage in ("val", "test"):
            for name in self._metric_names:
                key = f"{stage}_{METRICS[name]}"
                if key not in self.metrics:
                    self.metrics[key] = build_metric(name, self._known("num_classes"), bool(self.multi_label))

    def _known(self, name: str) -> int:
        value: int | None = getattr(self, name)
        if value is None:
            raise ValueError(
                f"Expected NodeClassifier({name}=...), since no data module here has `{name}` (GraphDataModule does)."
            )
        return value

    def get_extra_state(self) -> Tensor:
        """Return the sizes, for a module that still has to be built when it is given weights."""
        # Lightning trains a copy of the module where it forks or spawns, and hands its weights back to a module that has
        # not met the data. A tensor, since every other value of a state is one.
        sizes = (self.num_features, self.num_classes, self.multi_label)
        return torch.tensor([_UNKNOWN if size is None else int(size) for size in sizes])

    def set_extra_state(self, state: Tensor) -> None:
        """Build what is not built yet in the sizes that the weights have."""
        num_features, num_classes, multi_label = (None if size == _UNKNOWN else size for size in state.tolist())
        self.num_features = num_features if self.num_features is None else self.num_features
        self.num_classes = num_classes if self.num_classes is None else self.num_classes
        if self.multi_label is None and multi_label is not None:
            self.multi_label = bool(multi_label)
        if self.num_features is not None and self.num_classes is not None:
            self._build_model()

    def forward(self, batch: Data) -> Tensor:
        """Return the logits of a batch of ``n`` nodes, shape ``[n, C]``."""
        assert self.model is not None, "configure_model() comes first"
        return call_model(self.model, batch)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Return the mean loss over the training nodes of the batch."""
        return self._step(batch, "train")

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        """Log the loss and the metrics of the validation nodes."""
        self._step(batch, "val")

    def test_step(self, batch: Data, batch_idx: int) -> None:
        """Log the loss and the metrics of the test nodes."""
        self._step(batch, "test")

    def predict_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Return the logits of all nodes of the batch, shape ``[n, C]``."""
        logits: Tensor = self(batch)
        return logits

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, or the optimizer and scheduler given."""
        optimizer = self._optimizer(self.parameters())
        if self._lr_scheduler is None:
            return optimizer
        scheduler = self._lr_scheduler(optimizer)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            monitor = getattr(scheduler, "monitor", "val_loss")
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": monitor}}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _step(self, batch: Data, stage: Stage) -> Tensor:
        logits = self(batch)
        target, chosen = select_labelled(batch, stage, bool(self.multi_label))
        logits, target = logits[chosen], target[chosen]
        if len(target) == 0 and self.trainer.world_size == 1:
            raise ValueError(f"Expected a labelled node for the {stage} stage, got none in `{stage}_mask` of {batch}.")
        loss = mean_loss(logits, target)
        self.log(f"{stage}_loss", loss, batch_size=len(target), on_step=False, on_epoch=True, prog_bar=True)
        for key, metric in self.metrics.items():
            if key.startswith(f"{stage}_"):
                assert isinstance(metric, Metric)
                update_metric(metric, logits, target)
                self.log(key, metric, batch_size=len(target), on_step=False, on_epoch=True, prog_bar=True)
        return loss
