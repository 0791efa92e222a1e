"""The halo strategy: full-graph training over partitions, the user's module unchanged."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import _augment_message
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gnncomm.codecs.base import Codec, resolve_codec
from lightning_gnncomm.codecs.threshold import ThresholdCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.gradient import CountingState, ordered_mean_hook
from lightning_gnncomm.comm.groups import destroy_group, new_group
from lightning_gnncomm.comm.schedule import Decision, Schedule, resolve_schedule
from lightning_gnncomm.comm.threshold import ThresholdState, threshold_hook
from lightning_gnncomm.comm.traffic import Traffic, TrafficRecord
from lightning_gnncomm.comm.wire import DistributedWire
from lightning_gnncomm.graph.typed import Graph
from lightning_gnncomm.halo.attach import Attachment, attach, is_heterogeneous
from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.pairs import PairReads
from lightning_gnncomm.strategies.dropin import DropIn, find_part, let_full_loader_pass
from lightning_gnncomm.strategies.loss import Term, loss_terms, weighted
from lightning_gnncomm.strategies.meaning import (
    ALREADY_GLOBAL,
    GraphLog,
    gather_predictions,
    mask_counts,
    synchronise_metrics,
)
from lightning_gnncomm.strategies.provenance import ReductionRecorder
from lightning_gnncomm.strategies.resume import Memory
from lightning_gnncomm.strategies.window import Window

__all__ = ["HaloStrategy"]

LossReduction = Literal["auto", "mean", "sum"]


class HaloStrategy(DDPStrategy):
    """Trains a PyG model on one graph partitioned over ranks, as on one device.

    Each rank holds the rows of its own nodes. PyG layers are intercepted where they read rows of remote neighbours, which travel
    through ``codec`` on ``schedule``; gradients travel back the same way. Losses are weighted, norms take their statistics and
    ``self.log`` its values over the whole graph. With one rank it is plain training.

    Registered as ``Trainer(strategy="halo")`` (exact), ``"sylvie"`` (signs of differences, used one step later, with refreshes and a
    guard that adapt), ``"sylvie_async"`` (one bit, one step later, never refreshed) and ``"sylvie_sync"`` (one bit, waited for;
    Sylvie's Sylvie-S).

    Args:
        codec: Codec of halo rows and their gradients in training: a name in :data:`~lightning_gnncomm.codecs.CODECS` such as
            ``"identity"`` or ``"one_bit"``, an instance, or ``{"feature": ..., "gradient": ...}`` with one for each direction.
            Validation, test and predict are always exact.
        schedule: When rows are due: ``"sync"``, ``"async"`` (one step later), ``"adaptive"`` (one step later, refreshed as the
            measured errors and the loss ask for) or an instance, see :class:`~lightning_gnncomm.comm.schedule.Asynchronous`.
        gradient_codec: ``ThresholdCodec(density, refresh)`` sends of the parameters' gradients only what reaches a threshold, and the
            rest later (DCT-DP, see :class:`~lightning_gnncomm.ThresholdState`); ``None`` sends them whole.
        loss_reduction: ``"auto"`` reads off the autograd graph over how many rows each term of the loss is a mean or sum.
            ``"mean"`` takes the loss as a mean over the nodes of ``loss_mask``, ``"sum"`` as a sum over nodes.
        loss_mask: Attribute of the batch that marks the nodes of a loss with ``loss_reduction="mean"``.
        allow: Paths of modules to take although they are not known to be exact.
        seed: Seed of the rounding randomness of lossy codecs.
        accelerator: See :class:`lightning.pytorch.strategies.DDPStrategy`, also for the arguments below.
        parallel_devices: Devices of this node.
        cluster_environment: Where ranks and addresses come from.
        checkpoint_io: How checkpoints are written.
        precision_plugin: Precision of the computation.
        process_group_backend: ``"gloo"`` or ``"nccl"``; by device if ``None``.
        timeout: After which a collective that a rank does not reach ends with an error.
        start_method: ``"popen"``, ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        **kwargs: Arguments of :class:`~torch.nn.parallel.DistributedDataParallel`.

    Raises:
        UnsupportedModuleError: At set-up, naming each module that would mean something else on several ranks.

    Example:
        >>> strategy = HaloStrategy(codec="one_bit")
        >>> strategy.codec.row_nbytes(64, torch.float32)
        12
    """

    exchanges_halos = True

    def __init__(
        self,
        codec: str | Codec | Mapping[str, str | Codec] = "identity",
        schedule: str | Schedule = "sync",
        gradient_codec: ThresholdCodec | None = None,
        loss_reduction: LossReduction = "auto",
        loss_mask: str = "train_mask",
        allow: Sequence[str] = (),
        seed: int = 0,
        accelerator: Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
        start_method: Literal["popen", "spawn", "fork", "forkserver"] = "popen",
        **kwargs: Any,
    ) -> None:
        if loss_reduction not in ("auto", "mean", "sum"):
            raise ValueError(f"Expected loss_reduction to be 'auto', 'mean' or 'sum', got {loss_reduction!r}.")
        if gradient_codec is not None and getattr(gradient_codec, "scope", None) != "tensor":
            raise ValueError(
                f"Expected gradient_codec to be a ThresholdCodec of scope 'tensor', got {gradient_codec!r}."
            )
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
            **kwargs,
        )
        # Buffers are computed alike on all ranks (norms by all-reduced statistics); copying rank 0's costs bytes each step.
        self._ddp_kwargs.pop("broadcast_buffers", None)
        known = inspect.signature(DistributedDataParallel).parameters
        self._ddp_kwargs["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        self.codec = resolve_codec(codec)
        self.schedule = resolve_schedule(schedule)
        self.gradient_codec = gradient_codec
        self.loss_reduction = loss_reduction
        self.loss_mask = loss_mask
        self.allow = list(allow)
        self.seed = seed
        self.traffic = Traffic()
        self.gradient_traffic = TrafficRecord()
        self._threshold: ThresholdState | None = None
        self.channel: Channel | None = None
        """What carries halo rows between set-up and tear-down, ``None`` on one rank."""
        self.decisions: list[tuple[int, Decision]] = []
        """Step and content of what the schedule changed during training, the same on all ranks."""
        self._wire: DistributedWire | None = None
        self._background: DistributedWire | None = None
        self._window: Window | None = None
        self._memory: Memory | None = None
        self._num_steps: int | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._attachment: Attachment | None = None
        self._dropin: DropIn | None = None
        self._log: GraphLog | None = None
        self._reverts: list[Callable[[], None]] = []
        self._backward_ran = False

    # Set-up and tear-down

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Every rank sees the one graph: nothing is dealt out among ranks by a sampler."""
        return {"num_replicas": 1, "rank": 0}

    @override
    def connect(self, model: pl.LightningModule) -> None:
        super().connect(model)
        # Before Lightning hands `log` on to callbacks.
        self._log = GraphLog(model, lambda: self._wire)

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        self._layer_sync = None  # batch norms are synchronised here, on any device
        if self.world_size == 1:
            return
        # Rows that nobody waits for must not hold up statistics of norms and the like, so each kind has a group.
        self._wire, self._background = (DistributedWire(new_group(self._timeout)) for _ in range(2))
        self._dropin = DropIn(self)
        assert self.lightning_module is not None
        self._reverts.append(let_full_loader_pass(self.lightning_module.trainer))

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        if self._wire is not None:
            assert self.lightning_module is not None
            # What they decide belongs to one run, not to the next one of the same Trainer.
            codec, schedule = copy.deepcopy((self.codec, self.schedule))
            self.channel = Channel(self._wire, codec, schedule, self.seed, self.traffic, background=self._background)
            self._window = Window(self.channel, self.root_device)
            if self.gradient_codec is not None:
                density, refresh = self.gradient_codec.density, self.gradient_codec.refresh
                self._threshold = ThresholdState(density, refresh, record=self.gradient_traffic)
            self._memory = Memory(self.channel, self._window, self.root_device, self._threshold, self.lightning_module)
            self._attachment = attach(self.lightning_module, HaloContext(self.channel), self.allow)
            self._reverts.append(synchronise_metrics(self.lightning_module))
            self._reverts.append(_answer_sigterm_alone(trainer))
        if self._wire is not None and trainer.state.fn == TrainerFn.FITTING:
            self.decisions = []
            rank_zero_info(
                f"Halo exchange over {self.world_size} ranks, {self.codec!r}, {self.schedule!r}. Values given to self.log become "
                f"means over the nodes of all ranks; log what is no mean (F1, AUROC) as a torchmetrics object."
            )
        super().setup(trainer)

    @override
    def configure_ddp(self) -> None:
        assert self.lightning_module is not None
        if self.world_size > 1 and is_heterogeneous(self.lightning_module):
            # The last layers of node types without labels get no gradient, which DDP takes for a mistake.
            self._ddp_kwargs["find_unused_parameters"] = True
            warnings.filterwarnings("ignore", message=".*find_unused_parameters=True was specified")
        super().configure_ddp()
        if self.world_size == 1:
            return
        assert isinstance(self.model, DistributedDataParallel)
        if self._threshold is None:
            self.model.register_comm_hook(CountingState(self.gradient_traffic), ordered_mean_hook)
        else:
            self.model.register_comm_hook(self._threshold, threshold_hook)

    @override
    def on_train_start(self) -> None:
        # Ranks seeded alike would drop the same positions of different nodes.
        if self.global_rank > 0:
            torch.manual_seed((torch.initial_seed() + 0x9E3779B97F4A7C15 * self.global_rank) % (1 << 63))
        if self._memory is not None and self._loaded is not None:
            self._num_steps = self._memory.load(self._loaded)
        if self._loaded is not None:
            self._count_resumed_epoch()
        self._loaded = None

    def _count_resumed_epoch(self) -> None:
        """Begin an epoch after a checkpoint that an epoch's last batch wrote.

        Lightning counts that epoch as done while it resumes, but then goes on as if still within it: the next epoch is never
        counted as started, and after a second such resume the counts are off and more than ``max_epochs`` are trained. With a
        whole graph in one batch every checkpoint between epochs is of that kind.
        """
        assert self.lightning_module is not None
        loop = self.lightning_module.trainer.fit_loop
        total = loop.epoch_progress.total
        assert isinstance(total, _ProcessedTracker)
        if loop.restarted_mid_epoch and total.processed == total.started:
            loop.reset_restart_stage()

    @override
    def on_train_end(self) -> None:
        self._drain()

    @override
    def on_validation_start(self) -> None:
        self._drain()

    def _drain(self) -> None:
        """Leave nothing in flight while no training step runs."""
        if self.channel is not None and self._window is not None:
            self.channel.drain()
            self._window.pause()

    # Checkpoints

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        # While an exception is handled the other ranks may be gone; without optimizers nothing is to be continued.
        alone = sys.exc_info()[0] is not None
        if self._memory is not None and self._num_steps is not None and "optimizer_states" in checkpoint and not alone:
            self._memory.save(checkpoint, self._num_steps)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            self._loaded = checkpoint  # Lightning loads before set-up
        return checkpoint

    @override
    def teardown(self) -> None:
        self._detach()
        super().teardown()
        # The model (and DDP's reducer with it) goes before the groups that its hooks used.
        for wire in (self._wire, self._background):
            if wire is not None:
                destroy_group(wire.group)
        self._wire = self._background = None

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
        self.channel = self._window = self._memory = self._num_steps = self._threshold = None
        for revert in self._reverts:
            revert()
        self._reverts.clear()
        if self._log is not None:
            self._log.revert()
            self._log = None
        self._dropin = None

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        _augment_message(
            exception,
            pattern=".*(Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed).*",
            new_message=(
                f"Rank {self.global_rank} lost the connection to another rank, most likely because that rank failed first: look for "
                f"its traceback above."
            ),
        )

        if self._wire is not None and isinstance(exception, (IndexError, RuntimeError)):
            _augment_message(
                exception,
                pattern=".*(out of bounds|out of range).*",
                new_message=(
                    f"{exception}\nOver several ranks, edges may start at nodes of other ranks, whose ids lie beyond the rows at "
                    f"hand. Message-passing layers get those rows; other code must not index node rows by 'edge_index[0]'."
                ),
            )

    # Data

    @override
    def process_dataloader(self, dataloader: object) -> object:
        if self._dropin is None:
            return dataloader
        return self._dropin.part_loader(dataloader)  # type: ignore[arg-type]

    # Steps

    @contextmanager
    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], exact: bool = True) -> Iterator[Graph | None]:
        if self._attachment is None:
            yield None
            return
        part = find_part(*args, *kwargs.values())
        if part is None:
            raise TypeError(
                "The step's batch holds no part of a graph (a torch_geometric Data or HeteroData with a 'halo' plan). Use "
                "GraphDataModule or a loader of one full graph, and keep the 'halo' attribute in transforms of the batch."
            )
        counts = mask_counts(part, self.loss_mask)
        if self._log is not None:
            self._log.counts = counts
        assert self.lightning_module is not None
        number = 0 if exact else self._begin_training_step(part)
        recorder = ReductionRecorder(set(map(float, counts.values())))
        context, tensors = self._attachment.context, part.to_dict()
        with context.step(part.halo, tensors, number, exact), recorder:
            reads = PairReads(context, tensors)
            with reads if reads.is_needed else nullcontext():
                yield part

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._backward_ran = False
        with self._step(args, kwargs, exact=False):
            output = super().training_step(*args, **kwargs)
        self._check_manual_backward()
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if self._window is not None and self._log is not None and isinstance(loss, Tensor):
            self._window.add_loss(loss, self._log.counts["loss"])
        return output

    def _begin_training_step(self, part: Graph) -> int:
        """Return the number of a training step and tell those who count with it; every call is a step, repeated batches too."""
        assert self._window is not None and self._memory is not None and self.lightning_module is not None
        self._memory.enter(part.halo)
        if self._num_steps is None:
            self._num_steps = self.lightning_module.trainer.fit_loop.total_batch_idx
        number = self._num_steps
        self._num_steps += 1
        for decision in self._window.begin(number):
            self.decisions.append((number, decision))
            if decision.what == "synchronous":
                rank_zero_info(f"Step {number}: {decision}.")
        return number

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._step(args, kwargs):
            return super().validation_step(*args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._step(args, kwargs):
            return super().test_step(*args, **kwargs)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._step(args, kwargs) as part:
            output = super().predict_step(*args, **kwargs)
        if part is None or self._wire is None:
            return output
        return gather_predictions(output, part, self._wire)

    @override
    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        self._backward_ran = True
        with self._weighted(closure_loss):
            return super().backward(closure_loss, optimizer, *args, **kwargs)

    def _weighted(self, loss: Tensor) -> AbstractContextManager[None]:
        """Make the loss of this rank's nodes its share of the loss over all nodes, for one backward pass."""
        if self._wire is None or self._log is None or loss.grad_fn is None:
            return nullcontext()
        assert self.lightning_module is not None
        counts = self._log.counts
        if self.loss_reduction == "auto":
            divided = self.lightning_module.automatic_optimization
            terms = loss_terms(loss, divided, set(map(float, counts.values())))
        elif self.loss_reduction == "sum":
            terms = [Term(loss.grad_fn, "sum")]
        else:
            terms = [Term(loss.grad_fn, "mean", float(counts["loss"]))]
        return weighted(loss, terms, self._wire)

    def _check_manual_backward(self) -> None:
        module = self.lightning_module
        if self._wire is None or module is None or module.automatic_optimization or self._backward_ran:
            return
        if any(parameter.grad is not None for parameter in module.parameters()):
            raise RuntimeError(
                "The loss went backward without the strategy, so it was not weighted by this rank's share of the graph. Call "
                "'self.manual_backward(loss)' instead of 'loss.backward()'."
            )

    @override
    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        if group is ALREADY_GLOBAL:
            return tensor
        # Means of integers would be floored.
        if isinstance(tensor, Tensor) and not tensor.is_floating_point() and str(reduce_op).lower() in ("mean", "avg"):
            tensor = tensor.double()
        return super().reduce(tensor, group, reduce_op)


def _answer_sigterm_alone(trainer: pl.Trainer) -> Callable[[], None]:
    """Let each rank end by itself on SIGTERM; return what reverts it.

    Lightning broadcasts inside the signal handler, which interrupts ranks in the middle of different collectives and then never
    returns. The loop still raises at the end of the step, and ranks that wait for one that left end with its connection.
    """
    connector = trainer._signal_connector

    def notify(signum: Any, frame: Any) -> None:
        launcher = trainer.strategy.launcher
        if not connector.received_sigterm and launcher is not None:
            launcher.kill(signum)
        connector.received_sigterm = True

    connector._sigterm_notifier_fn = notify  # type: ignore[method-assign,assignment]

    def revert() -> None:
        vars(connector).pop("_sigterm_notifier_fn", None)

    return revert
