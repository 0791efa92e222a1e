"""Thresholds for parameter gradients under any DDP strategy, and what they hold back in checkpoints."""

from __future__ import annotations

import sys
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_gnncomm.comm.gather import gather_states, unpack_state
from lightning_gnncomm.comm.threshold import ThresholdState, threshold_hook
from lightning_gnncomm.comm.wire import DistributedWire

__all__ = ["ThresholdGradients"]

_KEY = "lightning_gnncomm_threshold"


class ThresholdGradients(L.Callback):
    """Has ``threshold_hook`` called on any device, and keeps in checkpoints what all ranks hold back.

    ``DDPStrategy(ddp_comm_state=state, ddp_comm_hook=threshold_hook)`` alone does nothing on a CPU, where Lightning registers no
    hooks, and a run resumed from its checkpoints loses what was held back. With this callback ``strategy="ddp"`` is enough; it
    takes a strategy that has the hook as well. :class:`~lightning_gnncomm.HaloStrategy` has a ``gradient_codec`` instead.

    Args:
        state: Thresholds and what they hold back.

    Raises:
        TypeError: When training starts over several processes without DDP.

    Example:
        >>> state = ThresholdState(density=0.002)
        >>> trainer = L.Trainer(accelerator="cpu", callbacks=[ThresholdGradients(state)], logger=False)
    """

    def __init__(self, state: ThresholdState) -> None:
        self.state = state
        self._loaded: list[Any] = []

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.world_size == 1:
            return
        strategy, model = trainer.strategy, trainer.strategy.model
        if not (isinstance(strategy, DDPStrategy) and isinstance(model, DistributedDataParallel)):
            raise TypeError(f"Expected a DDP strategy for ThresholdGradients, got {type(strategy).__name__}.")
        is_there = strategy.root_device.type == "cuda" and strategy._ddp_comm_hook is threshold_hook
        if not is_there:
            model.register_comm_hook(self.state, threshold_hook)
        # Not before: parameters get to their device after checkpoints are read.
        if self._loaded:
            self.state.load_state_dict(unpack_state(self._loaded[trainer.global_rank]), pl_module.named_parameters())
        self._loaded = []

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        # While an exception is handled the other ranks may be gone.
        if trainer.world_size == 1 or sys.exc_info()[0] is not None:
            return
        state = self.state.state_dict(pl_module.named_parameters())
        packed = gather_states(DistributedWire(self.state.group), state, pl_module.device)
        if packed is not None:
            checkpoint[_KEY] = packed

    @override
    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint.get(_KEY, [])
        if trainer.world_size > 1 and len(self._loaded) != trainer.world_size:
            rank_zero_warn(
                f"The checkpoint holds what {len(self._loaded)} ranks held back of their gradients and {trainer.world_size} run "
                f"now: that is lost, so training does not go on with the bits it would have had."
            )
            self._loaded = []
