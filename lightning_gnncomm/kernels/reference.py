"""Plain-PyTorch default kernels of the ops in :mod:`~lightning_gnncomm.kernels.ops`, which describes what they compute.

Shape suffixes: ``R`` rows, ``F`` columns, ``B`` bytes of packed bits in a row (``ceil(F / 8)``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["counter_uniform", "one_bit_decode", "one_bit_encode", "one_bit_row_nbytes"]

_ENDS_NBYTES = 4
# Values worked on at a time: temporaries then stay in the second-level cache, and are small beside the rows themselves.
_CHUNK_VALUES = 1 << 17
_WORD_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_MASK_64 = (1 << 64) - 1
_GOLDEN_64 = 0x9E3779B97F4A7C15
_GOLDEN_32 = 0x9E3779B9


def one_bit_row_nbytes(num_features: int) -> int:
    """Return the bytes of one encoded row of ``num_features`` values."""
    return _ENDS_NBYTES + (num_features + 7) // 8


def counter_uniform(row_key_R: Tensor, stream: int, num_features: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.counter_uniform`."""
    num_rows = row_key_R.numel()
    seed_R2 = _row_seeds(row_key_R, stream)
    uniform_RF = torch.empty((num_rows, num_features), dtype=torch.float32, device=row_key_R.device)
    word_RF, scratch_RF = (_chunk_buffer(uniform_RF, torch.int32, num_features) for _ in range(2))
    for part in _row_chunks(num_rows, num_features):
        _uniform(seed_R2[part], word_RF, scratch_RF, out=uniform_RF[part])
    return uniform_RF


def one_bit_encode(rows_RF: Tensor, row_key_R: Tensor, stream: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.one_bit_encode`."""
    num_rows, num_features = rows_RF.shape
    payload = rows_RF.new_empty((num_rows, one_bit_row_nbytes(num_features)), dtype=torch.uint8)
    ends_R2 = _outward_ends(rows_RF)
    payload[:, :_ENDS_NBYTES] = ends_R2.view(torch.uint8)
    # Everything is halved, which is exact for the ends: the span of a finite row could overflow.
    half_lo_R1, half_hi_R1 = ends_R2.to(_compute_dtype(rows_RF)).mul_(0.5).chunk(2, dim=1)
    half_span_R1, minus_lo_R1 = half_hi_R1 - half_lo_R1, -half_lo_R1
    seed_R2 = _row_seeds(row_key_R, stream)
    buffers = _EncodeBuffers.like(rows_RF)
    for part in _row_chunks(num_rows, num_features):
        bits_RF = _choose(rows_RF[part], minus_lo_R1[part], half_span_R1[part], seed_R2[part], buffers)
        payload[part, _ENDS_NBYTES:] = _pack(bits_RF)
    return payload


def one_bit_decode(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.one_bit_decode`."""
    # A copy, since part of a longer message need not begin where a bf16 may.
    ends_R2 = payload[:, :_ENDS_NBYTES].clone(memory_format=torch.contiguous_format).view(torch.bfloat16).to(dtype)
    # One NaN makes both ends NaN: a row that was not finite must not come back as something plausible.
    ends_R2 = torch.where(ends_R2.isfinite().all(dim=1, keepdim=True), ends_R2, torch.nan)
    rows_RF = payload.new_empty((payload.size(0), num_features), dtype=dtype)
    # Bit arithmetic chooses 8 times faster than torch.where, which mispredicts a branch for every other random bit.
    word_dtype = _WORD_DTYPES[dtype.itemsize]
    word_RF, (lo_R, hi_R) = rows_RF.view(word_dtype), ends_R2.view(word_dtype).unbind(dim=1)
    differing_R1, lo_R1 = (lo_R ^ hi_R).unsqueeze(1), lo_R.unsqueeze(1)
    for part in _row_chunks(payload.size(0), num_features):
        chunk_RF = word_RF[part].copy_(_unpack(payload[part, _ENDS_NBYTES:], num_features))
        chunk_RF.neg_().bitwise_and_(differing_R1[part]).bitwise_xor_(lo_R1[part])
    return rows_RF


# --- chunks of rows ---------------------------------------------------------------------------------------------------


def _num_chunk_rows(num_features: int) -> int:
    return max(1, _CHUNK_VALUES // max(1, num_features))


def _row_chunks(num_rows: int, num_features: int) -> Iterator[slice]:
    step = _num_chunk_rows(num_features)
    num_rows = num_rows if num_features else 0  # rows without values give no work
    return (slice(start, start + step) for start in range(0, num_rows, step))


def _chunk_buffer(rows_RF: Tensor, dtype: torch.dtype, width: int) -> Tensor:
    """Memory for one chunk of ``rows_RF``, zeros of shape ``[R, width]``; chunks share it since fresh pages are slow."""
    num_rows = min(rows_RF.size(0), _num_chunk_rows(rows_RF.size(1)))
    return torch.zeros((num_rows, width), dtype=dtype, device=rows_RF.device)


# --- randomness -------------------------------------------------------------------------------------------------------


def _signed(value: int, bits: int) -> int:
    """The two's complement number with the same bits: tensors have no unsigned arithmetic, and theirs wraps around."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _xor_shift(x: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """``x ^= x >> shift`` in place, with a logical shift (tensors shift arithmetically, hence the mask)."""
    bits = 8 * x.element_size()
    torch.bitwise_right_shift(x, shift, out=scratch)
    return x.bitwise_xor_(scratch.bitwise_and_((1 << (bits - shift)) - 1))


def _mix_64(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, in place: each bit of the result depends on every bit of ``x``."""
    scratch = torch.empty_like(x)
    _xor_shift(x, 30, scratch).mul_(_signed(0xBF58476D1CE4E5B9, 64))
    _xor_shift(x, 27, scratch).mul_(_signed(0x94D049BB133111EB, 64))
    return _xor_shift(x, 31, scratch)


def _row_seeds(row_key_R: Tensor, stream: int) -> Tensor:
    """Two 32-bit words per row, shape ``[R, 2]``, int32."""
    # The stream is mixed first, so that neighbouring streams do not reuse each other's rows at an offset.
    offset = int(_mix_64(torch.tensor([_signed(stream & _MASK_64, 64)], device="cpu")))
    return _mix_64((row_key_R * _signed(_GOLDEN_64, 64)).add_(offset)).view(torch.int32).view(-1, 2)


def _uniform(seed_R2: Tensor, word_RF: Tensor, scratch_RF: Tensor, out: Tensor) -> Tensor:
    """Fill ``out``, shape ``[R, F]``, from the rows' seeds; the other two are int32 memory for at least as many rows."""
    num_rows, num_features = out.shape
    x_RF, scratch_RF = word_RF[:num_rows], scratch_RF[:num_rows]
    column_F = torch.arange(num_features, dtype=torch.int32, device=out.device).mul_(_signed(_GOLDEN_32, 32))
    torch.add(seed_R2[:, :1], column_F, out=x_RF)
    _xor_shift(x_RF, 16, scratch_RF).mul_(0x7FEB352D)
    # The first word only shifts a row along one sequence of counters; the second makes the rows different sequences.
    _xor_shift(x_RF, 15, scratch_RF).add_(seed_R2[:, 1:]).mul_(_signed(0x846CA68B, 32))
    # 24 bits are what a float32 below 1 holds exactly. The shift keeps the sign, so they lie in [-1/2, 1/2) at first.
    return out.copy_(_xor_shift(x_RF, 16, scratch_RF).bitwise_right_shift_(8)).mul_(2.0**-24).add_(0.5)


# --- one-bit rows -----------------------------------------------------------------------------------------------------


class _EncodeBuffers(NamedTuple):
    word_RF: Tensor
    scratch_RF: Tensor
    uniform_RF: Tensor
    chance_RF: Tensor
    bits_RF: Tensor  # F is padded to a multiple of 8

    @classmethod
    def like(cls, rows_RF: Tensor) -> _EncodeBuffers:
        """Return buffers for the chunks of ``rows_RF``."""
        num_features = rows_RF.size(1)
        return cls(
            _chunk_buffer(rows_RF, torch.int32, num_features),
            _chunk_buffer(rows_RF, torch.int32, num_features),
            _chunk_buffer(rows_RF, torch.float32, num_features),
            _chunk_buffer(rows_RF, _compute_dtype(rows_RF), num_features),
            _chunk_buffer(rows_RF, torch.bool, -(-num_features // 8) * 8),
        )


def _compute_dtype(rows_RF: Tensor) -> torch.dtype:
    return torch.promote_types(rows_RF.dtype, torch.float32)


def _outward_ends(rows_RF: Tensor) -> Tensor:
    """The rows' ends rounded outwards, shape ``[R, 2]``, bf16; not finite where a value is not or where one overflows."""
    if rows_RF.size(1) == 0:
        return rows_RF.new_zeros((rows_RF.size(0), 2), dtype=torch.bfloat16)
    # Two passes are faster than torch.aminmax.
    ends_R2 = torch.stack((rows_RF.amin(dim=1), rows_RF.amax(dim=1)), dim=1)
    outward_2 = torch.tensor([-torch.inf, torch.inf], dtype=torch.bfloat16, device=rows_RF.device)
    near_R2 = ends_R2.to(torch.bfloat16)
    error_R2 = near_R2.to(ends_R2.dtype) - ends_R2
    is_inside_R2 = error_R2 * outward_2.sign() < 0
    return torch.where(is_inside_R2, near_R2.nextafter(outward_2.expand_as(near_R2)), near_R2)


def _choose(
    rows_RF: Tensor, minus_lo_R1: Tensor, half_span_R1: Tensor, seed_R2: Tensor, buffers: _EncodeBuffers
) -> Tensor:
    """Choose the upper end (true) or the lower one for each value; columns from ``F`` to a multiple of 8 are false."""
    num_rows, num_features = rows_RF.shape
    chance_RF, bits_RF = buffers.chance_RF[:num_rows], buffers.bits_RF[:num_rows]
    torch.add(minus_lo_R1, rows_RF.to(chance_RF.dtype), alpha=0.5, out=chance_RF).div_(half_span_R1)
    uniform_RF = _uniform(seed_R2, buffers.word_RF, buffers.scratch_RF, out=buffers.uniform_RF[:num_rows])
    # Uniform numbers lie in [0, 1), so the ends are never missed. A constant row gives 0 / 0, and NaN chooses the lower.
    torch.lt(uniform_RF, chance_RF, out=bits_RF[:, :num_features])
    return bits_RF


def _pack(bits_RF: Tensor) -> Tensor:
    """Pack booleans, a multiple of 8 in each row, to bytes of shape ``[R, B]``."""
    # Eight booleans are one integer whose byte i is bit i; the product collects byte i in bit 56 + i, without carries.
    return (bits_RF.view(torch.int64) * 0x0102040810204080).bitwise_right_shift_(56)


def _unpack(packed_RB: Tensor, num_features: int) -> Tensor:
    """Unpack bytes to booleans of shape ``[R, F]``."""
    # The product copies the byte to all eight bytes of an integer, of which byte i then keeps bit i.
    spread_RB = packed_RB.to(torch.int64).mul_(0x0101010101010101).bitwise_and_(_signed(0x8040201008040201, 64))
    return spread_RB.view(torch.uint8)[:, :num_features] != 0
