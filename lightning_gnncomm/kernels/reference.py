"""Plain-PyTorch default kernels of the ops in :mod:`~lightning_gnncomm.kernels.ops`, which describes what they compute.

Shape suffixes: ``R`` rows, ``F`` columns, ``G`` groups of columns, ``B`` bytes of packed codes in a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "counter_uniform",
    "k_bit_decode",
    "k_bit_encode",
    "k_bit_row_nbytes",
    "sign_decode",
    "sign_encode",
    "sign_row_nbytes",
]

_ENDS_NBYTES = 4
# Values worked on at a time: temporaries then stay in the second-level cache, and are small beside the rows themselves.
_CHUNK_VALUES = 1 << 17
_WORD_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_MASK_64 = (1 << 64) - 1
_GOLDEN_64 = 0x9E3779B97F4A7C15
_GOLDEN_32 = 0x9E3779B9


def k_bit_row_nbytes(num_features: int, bits: int) -> int:
    """Return the bytes of one row of ``num_features`` values with ``bits`` bits each and two ends."""
    return _ENDS_NBYTES + (num_features * bits + 7) // 8


def sign_row_nbytes(num_features: int, group_size: int) -> int:
    """Return the bytes of one row of ``num_features`` signs and a scale for each ``group_size`` of them."""
    return _scales_nbytes(num_features, group_size) + (num_features + 7) // 8


def counter_uniform(row_key_R: Tensor, stream: int, num_features: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.counter_uniform`."""
    num_rows = row_key_R.numel()
    seed_R2 = _row_seeds(row_key_R, stream)
    uniform_RF = torch.empty((num_rows, num_features), dtype=torch.float32, device=row_key_R.device)
    word_RF, scratch_RF = (_chunk_buffer(uniform_RF, torch.int32, num_features) for _ in range(2))
    for part in _row_chunks(num_rows, num_features):
        _uniform(seed_R2[part], word_RF, scratch_RF, out=uniform_RF[part])
    return uniform_RF


def k_bit_encode(rows_RF: Tensor, bits: int, row_key_R: Tensor, stream: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.k_bit_encode`."""
    num_rows, num_features = rows_RF.shape
    payload = rows_RF.new_empty((num_rows, k_bit_row_nbytes(num_features, bits)), dtype=torch.uint8)
    ends_R2 = _outward_ends(rows_RF)
    payload[:, :_ENDS_NBYTES] = ends_R2.view(torch.uint8)
    # Everything is halved, which is exact for the ends: the span of a finite row could overflow.
    half_lo_R1, half_hi_R1 = ends_R2.to(_compute_dtype(rows_RF.dtype)).mul_(0.5).chunk(2, dim=1)
    half_span_R1, minus_lo_R1 = half_hi_R1 - half_lo_R1, -half_lo_R1
    seed_R2 = _row_seeds(row_key_R, stream)
    buffers = _EncodeBuffers.like(rows_RF, bits)
    for part in _row_chunks(num_rows, num_features):
        codes_RF = _round(rows_RF[part], bits, minus_lo_R1[part], half_span_R1[part], seed_R2[part], buffers)
        payload[part, _ENDS_NBYTES:] = _pack(codes_RF, bits)
    return payload


def k_bit_decode(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.k_bit_decode`."""
    ends_R2 = _read_bf16(payload[:, :_ENDS_NBYTES]).to(dtype)
    # One NaN makes both ends NaN: a row that was not finite must not come back as something plausible.
    ends_R2 = torch.where(ends_R2.isfinite().all(dim=1, keepdim=True), ends_R2, torch.nan)
    lo_R1, hi_R1 = ends_R2.chunk(2, dim=1)
    rows_RF = payload.new_empty((payload.size(0), num_features), dtype=dtype)
    for part in _row_chunks(payload.size(0), num_features):
        fields_RF = _spread(payload[part, _ENDS_NBYTES:], bits, num_features)
        if bits == 1:
            _select(fields_RF, lo_R1[part], hi_R1[part], out=rows_RF[part])
        else:
            _interpolate(fields_RF, bits, lo_R1[part], hi_R1[part], out=rows_RF[part])
    return rows_RF


def sign_encode(rows_RF: Tensor, group_size: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.sign_encode`."""
    num_rows, num_features = rows_RF.shape
    payload = rows_RF.new_empty((num_rows, sign_row_nbytes(num_features, group_size)), dtype=torch.uint8)
    scales_nbytes = _scales_nbytes(num_features, group_size)
    group_size = min(group_size, num_features)
    size_G = torch.full((scales_nbytes // 2,), group_size, dtype=torch.float64, device=rows_RF.device)
    size_G[-1:] = num_features - group_size * (size_G.numel() - 1)
    # Sums in float64 do not overflow, and for values of fewer bits hardly depend on their order.
    magnitude_RF = _chunk_buffer(rows_RF, torch.float64, size_G.numel() * group_size)
    sign_RF = _chunk_buffer(rows_RF, torch.bool, _round_up(num_features, 8))
    for part in _row_chunks(num_rows, num_features):
        chunk_RF = rows_RF[part]
        in_chunk = slice(chunk_RF.size(0))
        magnitude_RF[in_chunk, :num_features].copy_(chunk_RF).abs_()
        scale_RG = magnitude_RF[in_chunk].unflatten(1, (-1, group_size)).sum(dim=2).div_(size_G)
        payload[part, :scales_nbytes] = scale_RG.to(torch.bfloat16).view(torch.uint8)
        torch.ge(chunk_RF, 0, out=sign_RF[in_chunk, :num_features])
        payload[part, scales_nbytes:] = _pack(sign_RF[in_chunk], bits=1)
    return payload


def sign_decode(payload: Tensor, num_features: int, group_size: int, dtype: torch.dtype) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.sign_decode`."""
    scales_nbytes = _scales_nbytes(num_features, group_size)
    scale_RG = _read_bf16(payload[:, :scales_nbytes]).to(dtype)
    scale_RG = torch.where(scale_RG.isfinite(), scale_RG, torch.nan)
    group_size = min(group_size, num_features)
    rows_RF = payload.new_empty((payload.size(0), num_features), dtype=dtype)
    for part in _row_chunks(payload.size(0), num_features):
        fields_RF = _spread(payload[part, scales_nbytes:], bits=1, num_features=num_features)
        scale_RF = scale_RG[part].unsqueeze(2).expand(-1, -1, group_size).flatten(1)[:, :num_features]
        _select(fields_RF, -scale_RF, scale_RF, out=rows_RF[part])
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


# --- rounding ---------------------------------------------------------------------------------------------------------


class _EncodeBuffers(NamedTuple):
    word_RF: Tensor
    scratch_RF: Tensor
    uniform_RF: Tensor
    level_RF: Tensor
    code_RF: Tensor  # F is padded to whole bytes of the payload

    @classmethod
    def like(cls, rows_RF: Tensor, bits: int) -> _EncodeBuffers:
        """Return buffers for the chunks of ``rows_RF``."""
        num_features = rows_RF.size(1)
        return cls(
            _chunk_buffer(rows_RF, torch.int32, num_features),
            _chunk_buffer(rows_RF, torch.int32, num_features),
            _chunk_buffer(rows_RF, torch.float32, num_features),
            _chunk_buffer(rows_RF, _compute_dtype(rows_RF.dtype), num_features),
            _chunk_buffer(rows_RF, torch.uint8, _round_up(num_features, 8 // bits)),
        )


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


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
    # Of equal zeros a reduction may keep either sign: the sum makes minus zero a zero.
    return torch.where(is_inside_R2, near_R2.nextafter(outward_2.expand_as(near_R2)), near_R2).add_(0.0)


def _round(
    rows_RF: Tensor, bits: int, minus_lo_R1: Tensor, half_span_R1: Tensor, seed_R2: Tensor, buffers: _EncodeBuffers
) -> Tensor:
    """Round each value to a code in ``[0, 2 ** bits - 1]``, uint8; columns from ``F`` to whole bytes are zero."""
    num_rows, num_features = rows_RF.shape
    level_RF, code_RF = buffers.level_RF[:num_rows], buffers.code_RF[:num_rows]
    torch.add(minus_lo_R1, rows_RF.to(level_RF.dtype), alpha=0.5, out=level_RF).div_(half_span_R1)
    uniform_RF = _uniform(seed_R2, buffers.word_RF, buffers.scratch_RF, out=buffers.uniform_RF[:num_rows])
    if bits == 1:
        # Uniform numbers lie in [0, 1), so the ends are never missed. A constant row gives 0 / 0, and NaN chooses the lower.
        torch.lt(uniform_RF, level_RF, out=code_RF.view(torch.bool)[:, :num_features])
        return code_RF
    # Rounding is monotone, so that no value passes the upper end; but where a device divides only approximately one could,
    # and would spill into the codes beside it.
    num_steps = 2**bits - 1
    level_RF.mul_(num_steps).nan_to_num_(nan=0.0).clamp_(max=num_steps)
    # Whole part and rest are exact, where the sum of a level and a uniform number could be rounded to the next whole one.
    code_RF[:, :num_features].copy_(level_RF)
    code_RF[:, :num_features].add_(uniform_RF < level_RF.frac_())
    return code_RF


def _select(fields_RF: Tensor, lo: Tensor, hi: Tensor, out: Tensor) -> None:
    """Fill ``out`` with the upper end where a field is set and else with the lower; ends are ``[R, 1]`` or ``[R, F]``."""
    # Bit arithmetic chooses 8 times faster than torch.where, which mispredicts a branch for every other random bit.
    word_dtype = _WORD_DTYPES[out.dtype.itemsize]
    word_RF, lo, hi = out.view(word_dtype), lo.view(word_dtype), hi.view(word_dtype)
    word_RF.copy_(fields_RF != 0).neg_().bitwise_and_(lo ^ hi).bitwise_xor_(lo)


def _interpolate(fields_RF: Tensor, bits: int, lo_R1: Tensor, hi_R1: Tensor, out: Tensor) -> None:
    """Fill ``out`` with ``lo + code / (2 ** bits - 1) * (hi - lo)``, which is exact at both ends."""
    dtype = _compute_dtype(out.dtype)
    column_F = torch.arange(out.size(1), device=out.device)
    # A field is its code times a power of two, which the division takes out together with the number of steps.
    divisor_F = (2**bits - 1) * (1 << column_F.remainder_(8 // bits).mul_(bits))
    share_RF = fields_RF.to(dtype).div_(divisor_F)
    # Halved like the values that were sent, since the span of a finite row could overflow.
    out.copy_(torch.lerp(lo_R1.to(dtype) * 0.5, hi_R1.to(dtype) * 0.5, share_RF).mul_(2.0))


# --- bytes ------------------------------------------------------------------------------------------------------------


def _scales_nbytes(num_features: int, group_size: int) -> int:
    return 2 * ((num_features + group_size - 1) // group_size)


def _read_bf16(payload: Tensor) -> Tensor:
    # A copy, since part of a longer message need not begin where a bf16 may; flat, since a view in another type is refused
    # where a matrix is empty.
    num_rows, nbytes = payload.shape
    return (
        payload.clone(memory_format=torch.contiguous_format).view(-1).view(torch.bfloat16).view(num_rows, nbytes // 2)
    )


def _pack(codes_RF: Tensor, bits: int) -> Tensor:
    """Pack codes of one byte each (or booleans), whole bytes of them in each row, to bytes of shape ``[R, B]``."""
    # Codes of one byte of the payload are one integer with code i at bit 8 i. The product collects code i at bit
    # ``bits * i`` of its highest byte; what else it makes lies lower, or leaves the integer, without carries.
    per_byte = 8 // bits
    top = 8 * (per_byte - 1)
    factor = sum(1 << (top - (8 - bits) * i) for i in range(per_byte))
    return (codes_RF.view(_WORD_DTYPES[per_byte]) * _signed(factor, 8 * per_byte)).bitwise_right_shift_(top)


def _spread(packed_RB: Tensor, bits: int, num_features: int) -> Tensor:
    """Give each value a byte with its own bits, where they lay: shape ``[R, F]``, uint8, code times ``1 << bits * i``."""
    # The product copies the byte to all bytes of an integer, of which byte i then keeps field i.
    per_byte = 8 // bits
    copies = sum(1 << 8 * i for i in range(per_byte))
    fields = sum((2**bits - 1) << (8 + bits) * i for i in range(per_byte))
    word_RB = packed_RB.to(_WORD_DTYPES[per_byte]).mul_(copies).bitwise_and_(_signed(fields, 8 * per_byte))
    return word_RB.view(torch.uint8)[:, :num_features]
