"""DDP communication hooks: what is done with buckets of parameter gradients."""

# No postponed annotations here: DDP looks at those of the hook.
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from lightning_gnncomm.comm.traffic import TrafficRecord

__all__ = ["CountingState", "counting_allreduce_hook"]


class CountingState:
    """State of :func:`counting_allreduce_hook`: the group and what was handed to it.

    Args:
        record: Where bytes are counted.
        group: Group of the all-reduce; the default group if ``None``.
    """

    def __init__(self, record: TrafficRecord, group: dist.ProcessGroup | None = None) -> None:
        self.record = record
        self.group = group


def counting_allreduce_hook(state: CountingState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over all ranks, as DDP does by itself, and count its bytes.

    ``sent_bytes`` are the bytes handed over, once per bucket; a ring all-reduce puts ``2 (P - 1) / P`` times as many on the wire.
    """
    buffer = bucket.buffer()
    nbytes = buffer.numel() * buffer.element_size()
    state.record += TrafficRecord(exchanges=1, sent_bytes=nbytes, received_bytes=nbytes, dense_bytes=nbytes)
    group = state.group or dist.group.WORLD
    assert group is not None
    return allreduce_hook(group, bucket)
