"""Gathering what every rank remembers on rank 0, and taking it apart again."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.comm.wire import Wire

__all__ = ["gather_states", "unpack_state"]


def gather_states(wire: Wire, state: dict[str, Any], device: Any = "cpu") -> list[Tensor] | None:
    """Return the states of all ranks on rank 0, each as the uint8 tensor of a file, and ``None`` on the others.

    Args:
        wire: The ranks; all must call.
        state: Plain data and tensors.
        device: Where the wire takes tensors from.

    Example:
        >>> from lightning_gnncomm.testing import run_threads
        >>> gathered = run_threads(lambda wire: gather_states(wire, {"rank": wire.rank}), 2)
        >>> [unpack_state(packed) for packed in gathered[0]], gathered[1]
        ([{'rank': 0}, {'rank': 1}], None)
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    packed = torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8).to(device)
    sizes = [int(size) for size in wire.all_gather(torch.tensor([packed.numel()], device=device))]
    to_first = [packed.numel(), *[0] * (wire.world_size - 1)]
    from_all = sizes if wire.rank == 0 else [0] * wire.world_size
    received = wire.exchange(packed, to_first, from_all).wait().cpu()
    return [piece.clone() for piece in received.split(sizes)] if wire.rank == 0 else None


def unpack_state(packed: Tensor) -> dict[str, Any]:
    """Return a state that :func:`gather_states` gathered; it holds no code, and none is run."""
    state: dict[str, Any] = torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)
    return state
