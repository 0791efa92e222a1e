"""DDP communication hooks: what is done with buckets of parameter gradients."""

# No postponed annotations here: DDP looks at those of the hook.
import torch
import torch.distributed as dist
from torch import Tensor

from lightning_gnncomm.comm.traffic import TrafficRecord

__all__ = ["CountingState", "ordered_mean_hook"]


class CountingState:
    """State of :func:`ordered_mean_hook`: the group and what was handed to it.

    Args:
        record: Where bytes are counted.
        group: Group of the reduction; the default group if ``None``.
    """

    def __init__(self, record: TrafficRecord, group: dist.ProcessGroup | None = None) -> None:
        self.record = record
        self.group = group


def ordered_mean_hook(state: CountingState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over all ranks, adding their gradients up in the order of the ranks, and count its bytes.

    A ring adds each value up in an order that depends on its place in the bucket, and DDP arranges its buckets anew after the first
    step: a resumed run would differ from an uninterrupted one in the last bit. Here each rank adds up one shard, and all of them are
    gathered, which takes two rounds instead of ``2 (P - 1)`` and as many bytes as the ring.

    ``sent_bytes`` are the bytes of the bucket, once; ``2 (P - 1) / P`` times as many are on the wire.
    """
    buffer = bucket.buffer()
    nbytes = buffer.numel() * buffer.element_size()
    state.record += TrafficRecord(exchanges=1, sent_bytes=nbytes, received_bytes=nbytes, dense_bytes=nbytes)
    size = dist.get_world_size(state.group)
    shard = -(-buffer.numel() // size)
    padded = torch.nn.functional.pad(buffer, (0, shard * size - buffer.numel()))
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded, group=state.group)
    first, *others = received.view(size, shard).unbind()
    total = first.clone()
    for other in others:
        total += other
    dist.all_gather(list(padded.view(size, shard).unbind()), total.div_(size), group=state.group)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(padded[: buffer.numel()])
    return future
