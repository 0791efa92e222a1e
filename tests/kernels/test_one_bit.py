"""The one-bit ops: layout of the bytes, ends, special values, statistics, and what the result does not depend on."""

import math

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.kernels import counter_uniform, one_bit_decode, one_bit_encode

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LARGEST_BF16 = torch.finfo(torch.bfloat16).max
SMALLEST_BF16 = 2.0**-133  # subnormal


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def ends(payload: Tensor) -> Tensor:
    return payload[:, :4].clone(memory_format=torch.contiguous_format).view(torch.bfloat16).double()


def transmit(rows: Tensor, stream: int = 0, key: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    key = torch.arange(rows.size(0)) if key is None else key
    return one_bit_decode(one_bit_encode(rows, key, stream), rows.size(1), dtype or rows.dtype)


def repeat(row: Tensor, times: int) -> Tensor:
    """The same row under ``times`` different keys, decoded in float64."""
    rows = row.expand(times, -1)
    return transmit(rows, stream=123, dtype=torch.float64)


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_features", [0, 1, 2, 7, 8, 9, 16, 17, 61, 256])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 13])
def test_bytes_are_four_and_a_bit_for_each_value(num_rows: int, num_features: int):
    rows = normal(num_rows, num_features)
    payload = one_bit_encode(rows, torch.arange(num_rows), 0)
    assert payload.dtype == torch.uint8
    assert payload.is_contiguous()
    assert payload.numel() == num_rows * (4 + math.ceil(num_features / 8))
    assert one_bit_decode(payload, num_features, torch.float32).shape == rows.shape


@pytest.mark.parametrize("num_features", [1, 7, 8, 9, 24, 61])
def test_bits_lie_as_documented(num_features: int):
    rows = normal(50, num_features)
    rows[:, 0] = 4.0  # both ends are there and representable ...
    rows[:, -1] = -4.0
    choice = counter_uniform(torch.arange(50), 9, num_features) < (rows + 4.0) / 8.0
    payload = one_bit_encode(rows.clamp(-4, 4), torch.arange(50), 9)
    for column in range(num_features):
        bit = payload[:, 4 + column // 8] >> (column % 8) & 1
        assert num_features == 1 or torch.equal(bit.bool(), choice[:, column])
    unused = 8 * (payload.size(1) - 4) - num_features
    assert not (payload[:, -1] >> (8 - unused)).any()


def test_payload_may_be_any_part_of_a_message():
    rows = normal(6, 9)
    payload = one_bit_encode(rows, torch.arange(6), 0)
    expected = one_bit_decode(payload, 9, torch.float32)
    for start in (1, 2, 3):
        message = torch.zeros(start + payload.numel(), dtype=torch.uint8)
        message[start:] = payload.flatten()
        assert torch.equal(one_bit_decode(message[start:].view(6, -1), 9, torch.float32), expected)
    wide = torch.zeros(6, 20, dtype=torch.uint8)
    wide[:, 3:9] = payload
    assert torch.equal(one_bit_decode(wide[:, 3:9], 9, torch.float32), expected)
    assert torch.equal(one_bit_decode(wide[2:3, 3:9], 9, torch.float32), expected[2:3])
    assert torch.equal(one_bit_decode(payload[::2], 9, torch.float32), expected[::2])


# --- ends -------------------------------------------------------------------------------------------------------------


def neighbours(values: Tensor) -> tuple[Tensor, Tensor]:
    """The bf16 numbers around float64 values, found by search in the sorted list of all finite ones."""
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    table = codes.view(torch.bfloat16).double()
    table = table[table.isfinite()].unique()
    above = torch.searchsorted(table, values)  # first one not below
    below = torch.searchsorted(table, values, right=True) - 1
    return table[below], table[above]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-8, 1e-30, 1e-39, 3e-41, 1e4])
def test_ends_are_the_nearest_bf16_numbers_outside_the_row(dtype: torch.dtype, scale: float):
    rows = normal(2000, 3, dtype=torch.float64).mul_(scale).to(dtype)
    lower, _ = neighbours(rows.double().amin(dim=1))
    _, upper = neighbours(rows.double().amax(dim=1))
    assert torch.equal(ends(one_bit_encode(rows, torch.arange(2000), 0)), torch.stack((lower, upper), dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_stay_inside_the_ends_that_are_sent(dtype: torch.dtype):
    rows = normal(300, 20, dtype=dtype)
    sent = ends(one_bit_encode(rows, torch.arange(300), 0))
    decoded = transmit(rows, dtype=torch.float64)
    assert (sent[:, :1] <= rows.double()).all()
    assert (rows.double() <= sent[:, 1:]).all()
    assert ((decoded == sent[:, :1]) | (decoded == sent[:, 1:])).all()


def test_a_value_at_an_end_is_always_exact():
    """A probability of one must not be missed by rounding, nor spill into the next bit."""
    rows = torch.tensor([[-1.5, 3.0, 0.1, 3.0, -1.5, -1.5, 3.0, 3.0, 3.0]]).expand(50_000, -1)
    decoded = transmit(rows)
    exact = [0, 1, 3, 4, 5, 6, 7, 8]
    assert torch.equal(decoded[:, exact], rows[:, exact])


# --- special rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 2.0**-14, 65280.0])
@pytest.mark.parametrize("num_features", [1, 8, 11])
def test_constant_rows_are_exact_if_bf16_holds_them(dtype: torch.dtype, value: float, num_features: int):
    rows = torch.full((4, num_features), value, dtype=dtype)
    assert torch.equal(transmit(rows), rows)


@pytest.mark.parametrize("num_features", [1, 8, 11])
def test_other_constant_rows_are_unbiased(num_features: int):
    value = 1.0 + 2.0**-9  # halfway between two bf16 numbers
    decoded = repeat(torch.full((1, num_features), value), 10_000)
    assert set(decoded.unique().tolist()) == {1.0, 1.0 + 2.0**-7}
    sigma = ((value - 1.0) * (1.0 + 2.0**-7 - value) / decoded.numel()) ** 0.5
    assert abs(float(decoded.mean()) - value) < 4 * sigma


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_features", [1, 9])
def test_rows_that_are_not_finite_decode_to_nan_and_leave_others_alone(
    bad: float, dtype: torch.dtype, num_features: int
):
    rows = normal(5, num_features, dtype=dtype)
    clean = transmit(rows)
    rows[2, num_features // 2] = bad
    decoded = transmit(rows)
    assert decoded[2].isnan().all()
    assert torch.equal(decoded[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_finite_values_beyond_the_largest_bf16_decode_to_nan(sign: float):
    beyond = torch.finfo(torch.float32).max * sign
    rows = torch.tensor([[0.0, LARGEST_BF16 * sign], [0.0, beyond]])
    decoded = transmit(rows)
    assert torch.equal(decoded[0], rows[0])
    assert decoded[1].isnan().all()
    assert transmit(torch.tensor([[1.0, 1e200 * sign]], dtype=torch.float64)).isnan().all()


def test_ends_beyond_float16_decode_to_nan_there():
    rows = torch.tensor([[0.0, 65504.0]], dtype=torch.float16)
    assert transmit(rows).isnan().all()
    assert transmit(rows, dtype=torch.float32).tolist() == [[0.0, 65536.0]]


def test_the_widest_finite_row_does_not_overflow():
    decoded = repeat(torch.tensor([[-LARGEST_BF16, 0.0, LARGEST_BF16]]), 2000)
    assert (decoded[:, 0] == -LARGEST_BF16).all()
    assert (decoded[:, 2] == LARGEST_BF16).all()
    assert abs(float((decoded[:, 1] > 0).double().mean()) - 0.5) < 4 * 0.5 / 2000**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_smallest_rows_are_unbiased(dtype: torch.dtype):
    row = torch.tensor([[0.0, 0.25, 0.5, 1.0]], dtype=torch.float64).mul_(SMALLEST_BF16).to(dtype)
    decoded = repeat(row, 10_000) / SMALLEST_BF16
    assert set(decoded.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(decoded.mean(dim=0), row[0].double() / SMALLEST_BF16, rtol=0, atol=0.02)


# --- statistics -------------------------------------------------------------------------------------------------------

ROWS = {
    "normal": normal(1, 37),
    "tiny": normal(1, 37) * 1e-8,
    "subnormal": normal(1, 37) * 1e-39,
    "large": normal(1, 37) * 1e37,
    "offset": normal(1, 37) * 1e-2 + 100.0,
    "after ReLU": normal(1, 37).relu(),
    "three values": torch.tensor([[0.3, 0.4, 0.7]]),
    "bf16": normal(1, 37, dtype=torch.bfloat16),
    "float16": normal(1, 37, dtype=torch.float16),
    "float64": normal(1, 37, dtype=torch.float64),
    "float64 beyond float32": normal(1, 37, dtype=torch.float64) * 1e-42,
}


@pytest.mark.parametrize("name", ROWS)
def test_decoding_is_unbiased_with_the_variance_it_states(name: str):
    row, times = ROWS[name], 20_000
    lo, hi = ends(one_bit_encode(row, torch.tensor([0]), 0))[0].tolist()
    # In units of the span, where float64 does not underflow either.
    decoded = (repeat(row, times) - lo) / (hi - lo)
    expected = (row[0].double() - lo) / (hi - lo)
    variance = expected * (1 - expected)
    sigma = (variance / times).sqrt()
    mean = decoded.mean(dim=0)
    assert ((mean - expected).abs() <= 4 * sigma + 1e-6).all()
    # Jointly too: the squared errors of independent columns, in units of sigma, average to one.
    inner = sigma > 1e-3
    score = ((mean - expected)[inner] / sigma[inner]).square().mean()
    assert abs(float(score) - 1) < 4 * (2 / int(inner.sum())) ** 0.5
    torch.testing.assert_close(decoded.var(dim=0), variance, rtol=0, atol=4 * times**-0.5)


def test_streams_average_like_rows_do():
    rows, times = normal(20, 9), 400
    lo, hi = ends(one_bit_encode(rows, torch.arange(20), 0)).split(1, dim=1)
    mean = sum(transmit(rows, stream=7 * step).double() for step in range(times)) / times
    sigma = ((rows - lo) * (hi - rows) / times).sqrt()
    assert ((mean - rows).abs() <= 4.5 * sigma + 1e-6).all()


# --- what does not enter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_features", [1, 9, 700])
def test_rows_are_encoded_alike_in_any_company(num_features: int):
    rows, key = normal(400, num_features), torch.arange(400) * 31
    whole = one_bit_encode(rows, key, 5)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one_bit_encode(rows[order], key[order], 5), whole[order])
    assert torch.equal(one_bit_encode(rows[17:18], key[17:18], 5), whole[17:18])
    assert not torch.equal(one_bit_encode(rows, key, 6), whole)


def test_the_number_of_threads_does_not_enter():
    rows = normal(3000, 100)
    before = torch.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            results.append(one_bit_encode(rows, torch.arange(3000), 5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_strides_do_not_enter():
    rows = normal(60, 40)
    key = torch.arange(60)
    expected = one_bit_encode(rows, key, 1)
    assert torch.equal(one_bit_encode(rows.t().contiguous().t(), key, 1), expected)
    assert torch.equal(one_bit_encode(rows.repeat_interleave(2, dim=1)[:, ::2], key, 1), expected)
    assert torch.equal(
        one_bit_encode(rows.repeat_interleave(2, dim=0)[::2], key.repeat_interleave(2)[::2], 1), expected
    )
    constant = torch.ones(1, 1).expand(60, 40)
    assert torch.equal(transmit(constant), constant)


# --- torch.library ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 10), (0, 10), (3, 0), (1, 1)])
def test_ops_keep_the_rules_of_torch_library(dtype: torch.dtype, shape: tuple[int, int]):
    rows, key = normal(*shape, dtype=dtype), torch.arange(shape[0])
    torch.library.opcheck(torch.ops.gnncomm.one_bit_encode.default, (rows, key, 3))
    payload = one_bit_encode(rows, key, 3)
    torch.library.opcheck(torch.ops.gnncomm.one_bit_decode.default, (payload, shape[1], dtype))
    torch.library.opcheck(torch.ops.gnncomm.counter_uniform.default, (key, 3, shape[1]))


def test_wrong_arguments_are_named():
    rows, key = normal(3, 10), torch.arange(3)
    with pytest.raises(ValueError, match="as many keys as rows"):
        one_bit_encode(rows, key[:2], 0)
    with pytest.raises(ValueError, match="floating-point rows"):
        one_bit_encode(rows.long(), key, 0)
    with pytest.raises(ValueError, match=r"\[R, F\]"):
        one_bit_encode(rows.flatten(), key, 0)
    with pytest.raises(ValueError, match="6 bytes for each row"):
        one_bit_decode(torch.zeros(3, 7, dtype=torch.uint8), 10, torch.float32)
    with pytest.raises(ValueError, match="uint8 payload"):
        one_bit_decode(torch.zeros(3, 6), 10, torch.float32)
    with pytest.raises(ValueError, match="floating-point type"):
        one_bit_decode(torch.zeros(3, 6, dtype=torch.uint8), 10, torch.int64)
