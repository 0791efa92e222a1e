"""Process groups: made once, named by use, destroyed by their owner."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

__all__ = ["destroy_group", "new_group"]


def new_group(timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Return a new group of all ranks with the backend of the default group; every rank must call it."""
    group = dist.new_group(backend=dist.get_backend(), timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def destroy_group(group: dist.ProcessGroup | None) -> None:
    """Destroy a group if it still exists; the default group is left to whoever made it."""
    if group is not None and dist.is_initialized() and group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)
