"""The ops of the namespace ``gnncomm``: schema, shape function, default kernel and a typed verb for each.

The default kernels are plain PyTorch and run on any device. They are fallback, documentation and oracle at once: a native
kernel registered for a device gives the same bits.

Bytes of a one-bit row of ``F`` values (byte order is little-endian everywhere):

====================  ===========================================================================================
bytes                 meaning
====================  ===========================================================================================
0, 1                  lower end, bf16: the largest bf16 that is not above the row's minimum
2, 3                  upper end, bf16: the smallest bf16 that is not below the row's maximum
4 .. 3 + ceil(F / 8)  column ``8 j + i`` is bit ``i`` (``1 << i``) of byte ``4 + j``; bits past ``F`` are zero
====================  ===========================================================================================

A set bit stands for the upper end, a cleared one for the lower end.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from lightning_gnncomm.kernels import reference

__all__ = ["counter_uniform", "one_bit_decode", "one_bit_encode"]


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


def _expect(condition: bool, expected: str, got: object) -> None:
    if not condition:
        raise ValueError(f"Expected {expected}, got {got}.")


def _check_keys(row_key: Tensor) -> None:
    _expect(row_key.dim() == 1, "one key per row", f"the shape {tuple(row_key.shape)}")
    _expect(row_key.dtype == torch.int64, "int64 row keys", row_key.dtype)


def _check_rows(rows: Tensor, row_key: Tensor) -> None:
    _check_keys(row_key)
    _expect(rows.dim() == 2, "rows of shape [R, F]", f"the shape {tuple(rows.shape)}")
    _expect(rows.is_floating_point(), "floating-point rows", rows.dtype)
    _expect(rows.size(0) == row_key.size(0), "as many keys as rows", f"{row_key.size(0)} and {rows.size(0)}")


def _check_payload(payload: Tensor, num_features: int, dtype: torch.dtype) -> None:
    width = reference.one_bit_row_nbytes(num_features)
    shape = tuple(payload.shape)
    _expect(payload.dtype == torch.uint8, "a uint8 payload", payload.dtype)
    _expect(payload.dim() == 2 and shape[1] == width, f"{width} bytes for each row", f"the shape {shape}")
    _expect(dtype.is_floating_point, "a floating-point type to decode to", dtype)


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
    _check_rows(rows, row_key)
    return reference.one_bit_encode(rows, row_key, stream)


@_one_bit_encode.register_fake
def _(rows: Tensor, row_key: Tensor, stream: int) -> Tensor:
    _check_rows(rows, row_key)
    return rows.new_empty((rows.size(0), reference.one_bit_row_nbytes(rows.size(1))), dtype=torch.uint8)


@torch.library.custom_op(
    "gnncomm::one_bit_decode",
    mutates_args=(),
    schema="(Tensor payload, SymInt num_features, ScalarType dtype) -> Tensor",
)
def _one_bit_decode(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_payload(payload, num_features, dtype)
    return reference.one_bit_decode(payload, num_features, dtype)


@_one_bit_decode.register_fake
def _(payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    _check_payload(payload, num_features, dtype)
    return payload.new_empty((payload.size(0), num_features), dtype=dtype)
