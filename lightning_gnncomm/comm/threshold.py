"""Parameter gradients above a threshold only, with what was not sent added to the next ones (DCT-DP, arXiv 2010.08899)."""

# No postponed annotations here: DDP looks at those of the hook.
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_gnncomm.codecs.sparse import as_bytes, from_bytes, pack_sparse, sparse_nbytes, unpack_sparse
from lightning_gnncomm.codecs.threshold import ThresholdCodec
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.comm.wire import DistributedWire, Wire

__all__ = ["ThresholdState", "swap_counts", "threshold_hook"]


def swap_counts(wire: Wire, counts: Tensor) -> Tensor:
    """Return what each rank says in its row for this one: ``[P, K]`` to ``[P, K]``, int32; the own row becomes zero."""
    counts = counts.to(torch.int32)
    nbytes = [0 if peer == wire.rank else 4 * counts.size(1) for peer in range(wire.world_size)]
    others = torch.arange(wire.world_size, device=counts.device) != wire.rank
    received = torch.zeros_like(counts)
    payload = wire.exchange(as_bytes(counts[others]), nbytes, nbytes).wait()
    received[others] = from_bytes(payload, torch.int32).view(-1, counts.size(1))
    return received


@dataclass
class _Feedback:
    """What was held back of a tensor, flat and in float32 at least, and the threshold in force."""

    residual: Tensor
    threshold: Tensor
    steps: int = 0

    def keep(self, values: Tensor, codec: ThresholdCodec) -> Tensor:
        """Return what is sent of ``values`` ``[n]`` and of what was held back, in the type of ``values``."""
        total = (self.residual + values).view(1, -1)
        if self.steps % codec.refresh == 0:
            self.threshold = codec.thresholds(total)
        self.steps += 1
        kept = codec.keep(total, self.threshold).to(values.dtype)
        # One bad step passes: what is not finite is sent and not held back.
        rest = total - kept
        self.residual = rest.where(rest.isfinite(), 0.0).view(-1)
        return kept.view(-1)

    def state(self) -> dict[str, Any]:
        return {"residual": self.residual, "threshold": self.threshold, "steps": self.steps}

    @classmethod
    def restore(cls, state: Mapping[str, Any], device: Any) -> "_Feedback":
        return cls(state["residual"].to(device), state["threshold"].to(device), state["steps"])

    @classmethod
    def empty(cls, values: Tensor) -> "_Feedback":
        residual = torch.zeros_like(values, dtype=torch.promote_types(values.dtype, torch.float32))
        return cls(residual, residual.new_zeros(1, 1))


class ThresholdState:
    """State of :func:`threshold_hook`: thresholds, what was held back, and what was sent.

    Each parameter is dealt out among the ranks. A rank sends of its gradient what reaches the threshold, each shard to its owner;
    the owner averages, and sends of the mean what reaches a threshold of its own to all. What a sender or an owner holds back is
    added to what it has at the next step, so in the end all of it arrives. Without the second threshold an owner would pass on the
    union of what ``P`` ranks sent, and the gain would shrink as ranks are added.

    Everything is kept by parameter, not by bucket: DDP arranges its buckets anew after the first step.

    Args:
        density: Share of the values of a parameter to send, above 0 and up to 1, which is exact.
        refresh: Steps from one threshold to the next. Between, more values than ``density`` are sent while what is held back grows.
        min_size: Parameters with fewer values are sent whole.
        group: Group of the reduction; the default group if ``None``.
        record: Where bytes for other ranks are counted, with indices and counts; ``dense_bytes`` are those of a ring all-reduce.

    Raises:
        ValueError: If a number is out of range.

    Example:
        Any LightningModule, no graph needed::

            callback = ThresholdGradients(ThresholdState(density=0.002))
            Trainer(strategy="ddp", callbacks=[callback], devices=4)

        On GPUs ``DDPStrategy(ddp_comm_state=ThresholdState(), ddp_comm_hook=threshold_hook)`` does it too, but leaves what is held
        back out of checkpoints; on CPUs Lightning registers no hooks.
    """

    def __init__(
        self,
        density: float = 0.002,
        refresh: int = 20,
        min_size: int = 256,
        group: dist.ProcessGroup | None = None,
        record: TrafficRecord | None = None,
    ) -> None:
        self.codec = ThresholdCodec(density, refresh)
        self._whole = ThresholdCodec(1.0, refresh)
        self.min_size = min_size
        self.group = group
        self.record = TrafficRecord() if record is None else record
        # By parameter: of its gradient on this rank, and of the mean of the shard that this rank owns.
        self._own: dict[Tensor, _Feedback] = {}
        self._mean: dict[Tensor, _Feedback] = {}

    def reduce(self, wire: Wire, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Replace gradients by what all ranks have of their mean, the same bits on each; every rank must call alike."""
        size, rank = wire.world_size, wire.rank
        kept = [self._keep(self._own, p, grad.reshape(-1)) for p, grad in zip(parameters, gradients, strict=True)]
        shards = [values.tensor_split(size) for values in kept]
        to_peers = [[shard[peer] for shard in shards] for peer in range(size)]
        received = self._swap(wire, to_peers, [to_peers[rank]] * size)
        means = []
        for number, parameter in enumerate(parameters):
            # In the order of the ranks, so that nothing depends on buckets.
            total, *others = (pieces[number] for pieces in received)
            total = total.clone()
            for other in others:
                total += other
            means.append(self._keep(self._mean, parameter, total.div_(size)))
        everywhere = self._swap(wire, [means] * size, to_peers)
        for number, gradient in enumerate(gradients):
            gradient.copy_(torch.cat([pieces[number] for pieces in everywhere]).view_as(gradient))
        self.record.exchanges += 1
        ring_bytes = sum(2 * (size - 1) * g.numel() * g.element_size() // size for g in gradients)
        self.record.dense_bytes += ring_bytes

    def _keep(self, memory: dict[Tensor, _Feedback], parameter: Tensor, values: Tensor) -> Tensor:
        if parameter not in memory:
            memory[parameter] = _Feedback.empty(values)
        return memory[parameter].keep(values, self.codec if parameter.numel() >= self.min_size else self._whole)

    def _swap(self, wire: Wire, sent: Sequence[list[Tensor]], like: Sequence[list[Tensor]]) -> list[list[Tensor]]:
        """Send each rank its list of flat tensors and return those of all ranks, which are ``like`` these in shape."""
        packed = {id(tensor): pack_sparse(tensor) for tensor in {id(t): t for row in sent for t in row}.values()}
        peers = [peer for peer in range(wire.world_size) if peer != wire.rank]
        device = sent[0][0].device
        counts = torch.tensor([[packed[id(tensor)][1] for tensor in row] for row in sent], device=device)
        their_counts = swap_counts(wire, counts).tolist()
        payloads = [torch.cat([packed[id(tensor)][0] for tensor in sent[peer]]) for peer in peers]
        sizes = [
            [sparse_nbytes(t.numel(), n, t.element_size()) for t, n in zip(row, numbers, strict=True)]
            for row, numbers in zip(like, their_counts, strict=True)
        ]
        send_sizes, recv_sizes = [0] * wire.world_size, [sum(row) for row in sizes]
        for peer, payload in zip(peers, payloads, strict=True):
            send_sizes[peer] = payload.numel()
        arrived = wire.exchange(torch.cat(payloads), send_sizes, recv_sizes).wait().split(recv_sizes)
        overhead = 4 * counts.size(1) * len(peers)
        self.record.sent_bytes += sum(send_sizes) + overhead
        self.record.received_bytes += sum(recv_sizes) + overhead
        return [
            sent[peer]
            if peer == wire.rank
            else [
                unpack_sparse(piece, t.numel(), n, t.dtype)
                for piece, t, n in zip(arrived[peer].split(sizes[peer]), like[peer], their_counts[peer], strict=True)
            ]
            for peer in range(wire.world_size)
        ]

    def residuals(self, named_parameters: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return by name what is held back on this rank: of its own gradient ``[n]``, and of the mean of its shard ``[~n / P]``."""
        return {
            name: (self._own[parameter].residual, self._mean[parameter].residual)
            for name, parameter in named_parameters
            if parameter in self._own
        }

    def state_dict(self, named_parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        """Return what is remembered of each parameter on this rank, as plain data."""
        return {
            name: (self._own[parameter].state(), self._mean[parameter].state())
            for name, parameter in named_parameters
            if parameter in self._own
        }

    def load_state_dict(self, state: Mapping[str, Any], named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Continue from a :meth:`state_dict` of this rank among as many ranks."""
        self.reset()
        for name, parameter in named_parameters:
            if name in state:
                own, mean = (_Feedback.restore(feedback, parameter.device) for feedback in state[name])
                self._own[parameter], self._mean[parameter] = own, mean

    def reset(self) -> None:
        """Forget what was held back."""
        self._own, self._mean = {}, {}

    def __getstate__(self) -> dict[str, Any]:
        # Processes that are started get it before training, and groups do not travel.
        return vars(self) | {"group": None, "_own": {}, "_mean": {}}


def threshold_hook(state: ThresholdState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over all ranks, of each parameter the values above a threshold only; see :class:`ThresholdState`."""
    if dist.get_world_size(state.group) > 1:
        state.reduce(DistributedWire(state.group), bucket.parameters(), bucket.gradients())
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
