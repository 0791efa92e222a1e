"""The sign ops: layout of the bytes, scales, special values, and that they bring a row nearer."""

import math

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.kernels import sign_decode, sign_encode

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (1, 128), (7, 3), (8, 4), (9, 4), (61, 16), (130, 128), (20, 1)]  # columns, group size


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def transmit(rows: Tensor, group_size: int, dtype: torch.dtype | None = None) -> Tensor:
    return sign_decode(sign_encode(rows, group_size), rows.size(1), group_size, dtype or rows.dtype)


def groups(rows: Tensor, group_size: int) -> tuple[Tensor, ...]:
    return rows.split(group_size, dim=1)


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_features", "group_size"), [*SHAPES, (0, 4)])
@pytest.mark.parametrize("num_rows", [0, 1, 13])
def test_bytes_are_a_scale_for_each_group_and_a_bit_for_each_value(num_rows: int, num_features: int, group_size: int):
    rows = normal(num_rows, num_features)
    payload = sign_encode(rows, group_size)
    assert payload.dtype == torch.uint8
    assert payload.is_contiguous()
    assert payload.shape == (num_rows, 2 * math.ceil(num_features / group_size) + math.ceil(num_features / 8))
    assert sign_decode(payload, num_features, group_size, torch.float32).shape == rows.shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_features", "group_size"), SHAPES)
def test_scales_and_signs_are_as_documented(num_features: int, group_size: int, dtype: torch.dtype):
    rows = normal(50, num_features, dtype=dtype)
    payload = sign_encode(rows, group_size)
    scale = torch.cat([part.double().abs().mean(1, keepdim=True) for part in groups(rows, group_size)], dim=1)
    nbytes = 2 * scale.size(1)
    sent = payload[:, :nbytes].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)
    assert torch.equal(sent, scale.to(torch.bfloat16))
    for column in range(num_features):
        bit = payload[:, nbytes + column // 8] >> (column % 8) & 1
        assert torch.equal(bit.bool(), rows[:, column] >= 0)
    unused = 8 * (payload.size(1) - nbytes) - num_features
    assert not (payload[:, -1] >> (8 - unused)).any()
    sign = torch.where(rows >= 0, 1.0, -1.0).to(dtype)
    expected = sent.to(dtype).repeat_interleave(group_size, dim=1)[:, :num_features] * sign
    assert torch.equal(transmit(rows, group_size), expected)


def test_payload_may_be_any_part_of_a_message():
    rows = normal(6, 9)
    payload = sign_encode(rows, 4)
    expected = sign_decode(payload, 9, 4, torch.float32)
    message = torch.zeros(3 + payload.numel(), dtype=torch.uint8)
    message[3:] = payload.flatten()
    assert torch.equal(sign_decode(message[3:].view(6, -1), 9, 4, torch.float32), expected)
    wide = torch.zeros(6, 20, dtype=torch.uint8)
    wide[:, 3:11] = payload
    assert torch.equal(sign_decode(wide[:, 3:11], 9, 4, torch.float32), expected)
    assert torch.equal(sign_decode(payload[::2], 9, 4, torch.float32), expected[::2])


# --- contraction ------------------------------------------------------------------------------------------------------

ROWS = {
    "normal": normal(500, 61, dtype=torch.float64),
    "tiny": normal(500, 61, dtype=torch.float64) * 1e-8,
    "below bf16": normal(500, 61, dtype=torch.float64) * 1e-41,
    "huge": normal(500, 61, dtype=torch.float64) * 1e37,
    "one value": torch.eye(61, dtype=torch.float64) * 3.0,
    "heavy tails": normal(500, 61, dtype=torch.float64) ** 9,
    "constant": torch.full((1, 61), -1.7, dtype=torch.float64),
    "after ReLU": normal(500, 61, dtype=torch.float64).relu(),
}


@pytest.mark.parametrize("group_size", [1, 2, 16, 61, 128])
@pytest.mark.parametrize("name", ROWS)
def test_each_group_comes_nearer(name: str, group_size: int):
    rows = ROWS[name]
    for part, decoded in zip(groups(rows, group_size), groups(transmit(rows, group_size), group_size), strict=True):
        length, error = part.norm(dim=1), (part - decoded).norm(dim=1)
        if name == "below bf16":  # a scale of few bits brings nothing nearer for certain, but never farther
            assert (error <= length).all()
        else:
            assert (error <= (1 - (1 - 2.0**-16) / part.size(1)) ** 0.5 * length).all()


def test_the_bound_is_reached_by_a_single_value():
    """With all of a group in one value the mean is a g-th of it: no code of this form could state more."""
    row = torch.tensor([[1.0] + [0.0] * 15], dtype=torch.float64)
    error = (transmit(row, 16) - row).norm()
    assert float(error) == pytest.approx((1 - 1 / 16) ** 0.5, rel=1e-12)


# --- special rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_features", "group_size"), SHAPES)
def test_zeros_stay_zeros(num_features: int, group_size: int, dtype: torch.dtype):
    rows = torch.zeros(3, num_features, dtype=dtype)
    rows[1] = -0.0
    assert torch.equal(transmit(rows, group_size), rows)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_that_is_not_finite_makes_its_group_nan_and_no_other(bad: float, dtype: torch.dtype):
    rows = normal(5, 11, dtype=dtype)
    clean = transmit(rows, 4)
    rows[2, 5] = bad
    decoded = transmit(rows, 4)
    assert decoded[2, 4:8].isnan().all()
    decoded[2, 4:8] = clean[2, 4:8]
    assert torch.equal(decoded, clean)


def test_sums_do_not_overflow_but_scales_beyond_bf16_are_nan():
    largest = torch.finfo(torch.bfloat16).max
    rows = torch.full((1, 128), largest)
    assert torch.equal(transmit(rows, 128), rows)
    assert transmit(torch.full((1, 8), torch.finfo(torch.float32).max), 8).isnan().all()
    assert transmit(torch.full((1, 8), 1e200, dtype=torch.float64), 8).isnan().all()
    half = torch.full((1, 8), 65504.0, dtype=torch.float16)
    assert transmit(half, 8).isnan().all()
    assert (transmit(half, 8, dtype=torch.float32) == 65536.0).all()


# --- what does not enter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_features", [1, 9, 700])
def test_company_strides_and_threads_do_not_enter(num_features: int):
    rows = normal(400, num_features)
    whole = sign_encode(rows, 16)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sign_encode(rows[order], 16), whole[order])
    assert torch.equal(sign_encode(rows[17:18], 16), whole[17:18])
    assert torch.equal(sign_encode(rows.t().contiguous().t(), 16), whole)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        assert torch.equal(sign_encode(rows, 16), whole)
    finally:
        torch.set_num_threads(before)


# --- torch.library ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "group_size", "dtype"),
    [
        ((3, 10), 4, torch.float32),
        ((0, 5), 4, torch.bfloat16),
        ((3, 0), 4, torch.float64),
        ((2, 1), 128, torch.float16),
    ],
)
def test_ops_keep_the_rules_of_torch_library(shape: tuple[int, int], group_size: int, dtype: torch.dtype):
    rows = normal(*shape, dtype=dtype)
    torch.library.opcheck(torch.ops.gnncomm.sign_encode.default, (rows, group_size))
    payload = sign_encode(rows, group_size)
    torch.library.opcheck(torch.ops.gnncomm.sign_decode.default, (payload, shape[1], group_size, dtype))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="a positive group size, got 0"):
        sign_encode(normal(3, 10), 0)
    with pytest.raises(ValueError, match="a positive group size, got -1"):
        sign_decode(torch.zeros(3, 6, dtype=torch.uint8), 10, -1, torch.float32)
    with pytest.raises(ValueError, match="floating-point rows"):
        sign_encode(torch.ones(3, 10, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match=r"\[R, F\]"):
        sign_encode(normal(10), 4)
    with pytest.raises(ValueError, match="8 bytes for each row"):
        sign_decode(torch.zeros(3, 6, dtype=torch.uint8), 10, 4, torch.float32)
    with pytest.raises(ValueError, match="floating-point type"):
        sign_decode(torch.zeros(3, 8, dtype=torch.uint8), 10, 4, torch.int32)
