"""The ops of the namespace ``gnncomm``: schema, shape function, default kernel and a typed verb for each.

The default kernels are plain PyTorch and run on any device. They are fallback, documentation and oracle at once: a native
kernel registered for a device gives the same bits (save those of a NaN in the payload). Such are the CPU kernels of the one-bit
and k-bit ops, see :mod:`~lightning_gnncomm.kernels.native`.

Bytes of a ``b``-bit row of ``F`` values, with ``b`` of 1, 2, 4 or 8 (byte order is little-endian everywhere):

======================  =========================================================================================
bytes                   meaning
======================  =========================================================================================
0, 1                    lower end, bf16: the largest bf16 that is not above the row's minimum
2, 3                    upper end, bf16: the smallest bf16 that is not below the row's maximum
4 .. 3 + ceil(F b / 8)  codes: that of column ``8 / b * j + i`` lies in bits ``b i`` to ``b i + b - 1`` of byte
                        ``4 + j`` (bit 0 is the lowest); bits past the last code are zero
======================  =========================================================================================

Code 0 stands for the lower end, ``2 ** b - 1`` for the upper end, and those between for equal steps. With one bit, a set bit
is the upper end.

Bytes of a sign row of ``F`` values in ``G = ceil(F / g)`` groups of ``g`` consecutive columns (the last may be shorter):

==============================  =================================================================================
bytes                           meaning
==============================  =================================================================================
0 .. 2 G - 1                    scale of each group, bf16: the mean of the group's absolute values
2 G .. 2 G - 1 + ceil(F / 8)    column ``8 j + i`` is bit ``i`` of byte ``2 G + j``: set where the value is not
                                negative; bits past ``F`` are zero
==============================  =================================================================================
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from lightning_gnncomm.kernels import native, reference

__all__ = [
    "counter_uniform",
    "k_bit_decode",
    "k_bit_encode",
    "one_bit_decode",
    "one_bit_encode",
    "sign_decode",
    "sign_encode",
]


def counter_uniform(row_key: Tensor, stream: int, num_features: int) -> Tensor:
    """Return uniform numbers that depend on ``(stream, row key, column)`` and on nothing else.

    Neither the order and batching of the rows nor the number of threads and ranks enters: any rank can recompute any row.

    Args:
        row_key: One key per row, shape ``[R]``, int64.
        stream: A number of at most 63 bits that names the message.
        num_features: Number of columns ``F``.

    Returns:
        Multiples of ``2 ** -24`` in ``[0, 1)``, shape ``[R, F]``, float32.

    Raises:
        ValueError: If ``row_key`` is not an int64 vector.

    Example:
        >>> key = torch.tensor([10, 11, 12])
        >>> whole = counter_uniform(key, 7, 4)
        >>> bool((whole[2:] == counter_uniform(key[2:], 7, 4)).all())
        True
    """
    return cast(Tensor, torch.ops.gnncomm.counter_uniform(row_key, stream, num_features))


def one_bit_encode(rows: Tensor, row_key: Tensor, stream: int) -> Tensor:
    """Round every value to an end of its row, at random and without bias (Sylvie's low-bit module, b = 1).

    A value ``h`` of a row with ends ``lo <= hi`` (bf16, rounded outwards) becomes ``hi`` with probability
    ``(h - lo) / (hi - lo)`` up to ``2 ** -24``, so that its mean is ``h`` and its variance ``(h - lo) (hi - h)``. A row with
    an inf or a NaN in it, or a value beyond the largest bf16, gets an end that is not finite and decodes to NaN throughout.

    Args:
        rows: Values, shape ``[R, F]``, any floating-point type and any strides.
        row_key: One key per row for :func:`counter_uniform`, shape ``[R]``, int64.
        stream: A number of at most 63 bits that names the message.

    Returns:
        The payload, shape ``[R, 4 + ceil(F / 8)]``, uint8.

    Raises:
        ValueError: If ``rows`` is not a floating-point matrix or ``row_key`` not an int64 vector of its length.

    Example:
        >>> rows = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
        >>> one_bit_encode(rows, torch.tensor([0]), 7).tolist()  # 0x3F80 is 1.0 in bf16
        [[0, 0, 128, 63, 10]]
    """
    return cast(Tensor, torch.ops.gnncomm.one_bit_encode(rows, row_key, stream))


def one_bit_decode(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    """Return the rows that :func:`one_bit_encode` made bytes of.

    Args:
        payload: The payload, shape ``[R, 4 + ceil(F / 8)]``, uint8.
        num_features: Number of columns ``F``.
        dtype: Floating-point type of the result.

    Returns:
        Rows of shape ``[R, F]``: each value is an end of its row. Rows with an end that is not finite in ``dtype`` are all
        NaN (in float16 that includes ends above 65504).

    Raises:
        ValueError: If the payload is not a uint8 matrix of that width or ``dtype`` is not a floating-point type.

    Example:
        >>> one_bit_decode(torch.tensor([[0, 0, 128, 63, 10]], dtype=torch.uint8), 4, torch.float32)
        tensor([[0., 1., 0., 1.]])
    """
    return cast(Tensor, torch.ops.gnncomm.one_bit_decode(payload, num_features, dtype))


def k_bit_encode(rows: Tensor, bits: int, row_key: Tensor, stream: int) -> Tensor:
    """Round every value to one of ``2 ** bits`` levels between the ends of its row, at random and without bias.

    The levels part the row's span into ``2 ** bits - 1`` equal steps ``s``. A value that lies the share ``p`` of a step above a
    level goes to the next one with probability ``p``, otherwise to that level, so that its mean is kept (up to ``2 ** -22`` of the
    span) and its variance is ``p (1 - p) s ** 2``, at most ``s ** 2 / 4``. Ends, rows that are not finite and the counters are
    those of :func:`one_bit_encode`, which gives the same bytes as one bit here.

    Args:
        rows: Values, shape ``[R, F]``, any floating-point type and any strides.
        bits: Bits of a value: 1, 2, 4 or 8.
        row_key: One key per row for :func:`counter_uniform`, shape ``[R]``, int64.
        stream: A number of at most 63 bits that names the message.

    Returns:
        The payload, shape ``[R, 4 + ceil(F * bits / 8)]``, uint8.

    Raises:
        ValueError: If ``rows`` is not a floating-point matrix, ``row_key`` not an int64 vector of its length, or ``bits`` another
            number.

    Example:
        >>> rows = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
        >>> k_bit_encode(rows, 2, torch.tensor([0]), 7).tolist()  # 0x4040 is 3.0 in bf16, and 228 is 0b11100100
        [[0, 0, 64, 64, 228]]
    """
    return cast(Tensor, torch.ops.gnncomm.k_bit_encode(rows, bits, row_key, stream))


def k_bit_decode(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    """Return the rows that :func:`k_bit_encode` made bytes of.

    Args:
        payload: The payload, shape ``[R, 4 + ceil(F * bits / 8)]``, uint8.
        bits: Bits of a value: 1, 2, 4 or 8.
        num_features: Number of columns ``F``.
        dtype: Floating-point type of the result.

    Returns:
        Rows of shape ``[R, F]``; the ends of a row come back exactly. Rows with an end that is not finite in ``dtype`` are all NaN.

    Raises:
        ValueError: If the payload is not a uint8 matrix of that width, ``bits`` is another number, or ``dtype`` is not a
            floating-point type.

    Example:
        >>> k_bit_decode(torch.tensor([[0, 0, 64, 64, 228]], dtype=torch.uint8), 2, 4, torch.float32)
        tensor([[0., 1., 2., 3.]])
    """
    return cast(Tensor, torch.ops.gnncomm.k_bit_decode(payload, bits, num_features, dtype))


def sign_encode(rows: Tensor, group_size: int) -> Tensor:
    """Keep of every value its sign, and of each group of columns the mean of its absolute values.

    Nothing is random. The code is biased but contractive: for a group ``d`` of ``g`` values and its decoded ``C(d)``,
    ``||d - C(d)|| <= sqrt(1 - 1 / g) ||d||``, up to ``2 ** -16 / g`` under the root for the rounding of the scale to bf16.

    Args:
        rows: Values, shape ``[R, F]``, any floating-point type and any strides.
        group_size: Number of consecutive columns ``g`` that share a scale; the last group may be shorter.

    Returns:
        The payload, shape ``[R, 2 * ceil(F / g) + ceil(F / 8)]``, uint8. A group with an inf or a NaN in it, or with a mean
        beyond the largest bf16, gets a scale that is not finite and decodes to NaN; the other groups of its row do not.

    Raises:
        ValueError: If ``rows`` is not a floating-point matrix or ``group_size`` not positive.

    Example:
        >>> sign_encode(torch.tensor([[1.0, -1.0, 0.5, 1.5]]), 4).tolist()  # 0x3F80 is 1.0 in bf16
        [[128, 63, 13]]
    """
    return cast(Tensor, torch.ops.gnncomm.sign_encode(rows, group_size))


def sign_decode(payload: Tensor, num_features: int, group_size: int, dtype: torch.dtype) -> Tensor:
    """Return the rows that :func:`sign_encode` made bytes of.

    Args:
        payload: The payload, shape ``[R, 2 * ceil(F / g) + ceil(F / 8)]``, uint8.
        num_features: Number of columns ``F``.
        group_size: Number of consecutive columns ``g`` that share a scale.
        dtype: Floating-point type of the result.

    Returns:
        Rows of shape ``[R, F]``: each value is the scale of its group or minus that. Groups with a scale that is not finite in
        ``dtype`` are all NaN.

    Raises:
        ValueError: If the payload is not a uint8 matrix of that width, ``group_size`` is not positive, or ``dtype`` is not a
            floating-point type.

    Example:
        >>> sign_decode(torch.tensor([[128, 63, 13]], dtype=torch.uint8), 4, 4, torch.float32)
        tensor([[ 1., -1.,  1.,  1.]])
    """
    return cast(Tensor, torch.ops.gnncomm.sign_decode(payload, num_features, group_size, dtype))


def _expect(condition: bool, expected: str, got: object) -> None:
    if not condition:
        raise ValueError(f"Expected {expected}, got {got}.")


def _check_keys(row_key: Tensor) -> None:
    _expect(row_key.dim() == 1, "one key per row", f"the shape {tuple(row_key.shape)}")
    _expect(row_key.dtype == torch.int64, "int64 row keys", row_key.dtype)


def _check_matrix(rows: Tensor) -> None:
    _expect(rows.dim() == 2, "rows of shape [R, F]", f"the shape {tuple(rows.shape)}")
    _expect(rows.is_floating_point(), "floating-point rows", rows.dtype)


def _check_rows(rows: Tensor, bits: int, row_key: Tensor) -> None:
    _check_keys(row_key)
    _check_matrix(rows)
    _check_bits(bits)
    _expect(rows.size(0) == row_key.size(0), "as many keys as rows", f"{row_key.size(0)} and {rows.size(0)}")


def _check_bits(bits: int) -> None:
    _expect(bits in (1, 2, 4, 8), "1, 2, 4 or 8 bits a value", bits)


def _check_group_size(group_size: int) -> None:
    _expect(group_size > 0, "a positive group size", group_size)


def _check_payload(payload: Tensor, width: int, dtype: torch.dtype) -> None:
    shape = tuple(payload.shape)
    _expect(payload.dtype == torch.uint8, "a uint8 payload", payload.dtype)
    _expect(payload.dim() == 2 and shape[1] == width, f"{width} bytes for each row", f"the shape {shape}")
    _expect(dtype.is_floating_point, "a floating-point type to decode to", dtype)


def _check_k_bit_payload(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> None:
    _check_bits(bits)
    _check_payload(payload, reference.k_bit_row_nbytes(num_features, bits), dtype)


def _check_sign_payload(payload: Tensor, num_features: int, group_size: int, dtype: torch.dtype) -> None:
    _check_group_size(group_size)
    _check_payload(payload, reference.sign_row_nbytes(num_features, group_size), dtype)


@torch.library.custom_op(
    "gnncomm::counter_uniform", mutates_args=(), schema="(Tensor row_key, int stream, SymInt num_features) -> Tensor"
)
def _counter_uniform(row_key: Tensor, stream: int, num_features: int) -> Tensor:
    _check_keys(row_key)
    return reference.counter_uniform(row_key, stream, num_features)


@_counter_uniform.register_fake
def _(row_key: Tensor, stream: int, num_features: int) -> Tensor:
    _check_keys(row_key)
    return row_key.new_empty((row_key.size(0), num_features), dtype=torch.float32)


@torch.library.custom_op(
    "gnncomm::one_bit_encode", mutates_args=(), schema="(Tensor rows, Tensor row_key, int stream) -> Tensor"
)
def _one_bit_encode(rows: Tensor, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, 1, row_key)
    return reference.k_bit_encode(rows, 1, row_key, stream)


@_one_bit_encode.register_kernel("cpu")
def _(rows: Tensor, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, 1, row_key)
    return native.k_bit_encode(rows, 1, row_key, stream)


@_one_bit_encode.register_fake
def _(rows: Tensor, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, 1, row_key)
    return rows.new_empty((rows.size(0), reference.k_bit_row_nbytes(rows.size(1), 1)), dtype=torch.uint8)


@torch.library.custom_op(
    "gnncomm::one_bit_decode",
    mutates_args=(),
    schema="(Tensor payload, SymInt num_features, ScalarType dtype) -> Tensor",
)
def _one_bit_decode(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, 1, num_features, dtype)
    return reference.k_bit_decode(payload, 1, num_features, dtype)


@_one_bit_decode.register_kernel("cpu")
def _(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, 1, num_features, dtype)
    return native.k_bit_decode(payload, 1, num_features, dtype)


@_one_bit_decode.register_fake
def _(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, 1, num_features, dtype)
    return payload.new_empty((payload.size(0), num_features), dtype=dtype)


@torch.library.custom_op(
    "gnncomm::k_bit_encode", mutates_args=(), schema="(Tensor rows, int bits, Tensor row_key, int stream) -> Tensor"
)
def _k_bit_encode(rows: Tensor, bits: int, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, bits, row_key)
    return reference.k_bit_encode(rows, bits, row_key, stream)


@_k_bit_encode.register_kernel("cpu")
def _(rows: Tensor, bits: int, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, bits, row_key)
    return native.k_bit_encode(rows, bits, row_key, stream)


@_k_bit_encode.register_fake
def _(rows: Tensor, bits: int, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, bits, row_key)
    return rows.new_empty((rows.size(0), reference.k_bit_row_nbytes(rows.size(1), bits)), dtype=torch.uint8)


@torch.library.custom_op(
    "gnncomm::k_bit_decode",
    mutates_args=(),
    schema="(Tensor payload, int bits, SymInt num_features, ScalarType dtype) -> Tensor",
)
def _k_bit_decode(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, bits, num_features, dtype)
    return reference.k_bit_decode(payload, bits, num_features, dtype)


@_k_bit_decode.register_kernel("cpu")
def _(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, bits, num_features, dtype)
    return native.k_bit_decode(payload, bits, num_features, dtype)


@_k_bit_decode.register_fake
def _(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_k_bit_payload(payload, bits, num_features, dtype)
    return payload.new_empty((payload.size(0), num_features), dtype=dtype)


@torch.library.custom_op("gnncomm::sign_encode", mutates_args=(), schema="(Tensor rows, SymInt group_size) -> Tensor")
def _sign_encode(rows: Tensor, group_size: int) -> Tensor:
    _check_matrix(rows)
    _check_group_size(group_size)
    return reference.sign_encode(rows, group_size)


@_sign_encode.register_fake
def _(rows: Tensor, group_size: int) -> Tensor:
    _check_matrix(rows)
    _check_group_size(group_size)
    return rows.new_empty((rows.size(0), reference.sign_row_nbytes(rows.size(1), group_size)), dtype=torch.uint8)


@torch.library.custom_op(
    "gnncomm::sign_decode",
    mutates_args=(),
    schema="(Tensor payload, SymInt num_features, SymInt group_size, ScalarType dtype) -> Tensor",
)
def _sign_decode(payload: Tensor, num_features: int, group_size: int, dtype: torch.dtype) -> Tensor:
    _check_sign_payload(payload, num_features, group_size, dtype)
    return reference.sign_decode(payload, num_features, group_size, dtype)


@_sign_decode.register_fake
def _(payload: Tensor, num_features: int, group_size: int, dtype: torch.dtype) -> Tensor:
    _check_sign_payload(payload, num_features, group_size, dtype)
    return payload.new_empty((payload.size(0), num_features), dtype=dtype)
