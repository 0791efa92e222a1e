"""Sparse values as bytes: all of them, or those that are not zero behind a bitmap or 16-bit positions, whichever is shortest."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_bytes", "from_bytes", "pack_sparse", "sparse_nbytes", "unpack_sparse"]

_BLOCK = 1 << 16
_BITS = (1, 2, 4, 8, 16, 32, 64, 128)


def sparse_nbytes(num_values: int, num_kept: int, itemsize: int) -> int:
    """Return the bytes of ``num_kept`` values out of ``num_values``, with what tells their places.

    That is the least of ``n s`` (all values), ``ceil(n / 8) + k s`` (a bitmap) and ``k (2 + s)`` (positions in blocks of 65536
    values, with 4 bytes more a block if there are several), for ``s`` bytes a value; nothing at all if nothing is kept.

    Example:
        >>> [sparse_nbytes(1000, kept, 4) for kept in (0, 10, 100, 1000)]
        [0, 60, 525, 4000]
    """
    return min(_sizes(num_values, num_kept, itemsize)) if num_kept else 0


def _sizes(num_values: int, num_kept: int, itemsize: int) -> list[int]:
    num_blocks = -(-num_values // _BLOCK)
    table = 4 * num_blocks if num_blocks > 1 else 0
    return [num_values * itemsize, -(-num_values // 8) + num_kept * itemsize, table + num_kept * (2 + itemsize)]


def _layout(num_values: int, num_kept: int, itemsize: int) -> int:
    """Return 0 for all values, 1 for a bitmap, 2 for positions: both ends compute it, so it does not travel."""
    sizes = _sizes(num_values, num_kept, itemsize)
    return sizes.index(min(sizes))


def pack_sparse(values: Tensor) -> tuple[Tensor, int]:
    """Pack the values ``[n]`` that are not zero.

    Returns:
        Their bytes, uint8, as many as :func:`sparse_nbytes` says, and how many they are, which the receiver must know.
    """
    places = values.nonzero().view(-1)
    count = places.numel()
    if not count:
        return values.new_empty(0, dtype=torch.uint8), 0
    layout = _layout(values.numel(), count, values.element_size())
    if layout == 0:
        return as_bytes(values), count
    kept = as_bytes(values[places])
    if layout == 1:
        return torch.cat((_pack_bits(values != 0), kept)), count
    offsets = as_bytes((places % _BLOCK - _BLOCK // 2).to(torch.int16))
    num_blocks = -(-values.numel() // _BLOCK)
    table = as_bytes((places // _BLOCK).bincount(minlength=num_blocks).to(torch.int32)) if num_blocks > 1 else kept[:0]
    return torch.cat((table, offsets, kept)), count


def unpack_sparse(payload: Tensor, num_values: int, num_kept: int, dtype: torch.dtype) -> Tensor:
    """Return the values ``[num_values]`` that :func:`pack_sparse` packed, zeros between them."""
    values = torch.zeros(num_values, dtype=dtype, device=payload.device)
    if not num_kept:
        return values
    layout = _layout(num_values, num_kept, dtype.itemsize)
    head, kept = payload.tensor_split([payload.numel() - num_kept * dtype.itemsize])
    if layout == 0:
        return from_bytes(payload, dtype)
    if layout == 1:
        values[_unpack_bits(head, num_values)] = from_bytes(kept, dtype)
        return values
    table, offsets = head.tensor_split([head.numel() - 2 * num_kept])
    places = from_bytes(offsets, torch.int16).long() + _BLOCK // 2
    if table.numel():
        counts = from_bytes(table, torch.int32).long()
        places += torch.arange(counts.numel(), device=payload.device).repeat_interleave(counts) * _BLOCK
    values[places] = from_bytes(kept, dtype)
    return values


def as_bytes(values: Tensor) -> Tensor:
    """Return values of any shape as flat bytes."""
    return values.reshape(-1).view(torch.uint8)


def from_bytes(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """Return flat bytes as flat values; a part of a message that does not begin where the type may is copied."""
    payload = payload.clone() if payload.storage_offset() % dtype.itemsize else payload
    return payload.view(dtype)


def _pack_bits(mask: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (padded * padded.new_tensor(_BITS)).sum(1, dtype=torch.uint8)


def _unpack_bits(packed: Tensor, num_values: int) -> Tensor:
    bits = packed.view(-1, 1).bitwise_and(packed.new_tensor(_BITS)) != 0
    return bits.view(-1)[:num_values]
