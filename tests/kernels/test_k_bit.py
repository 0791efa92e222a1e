"""The k-bit ops: layout of the bytes, levels, special values, statistics. What they share with one bit is tested there."""

import math

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.kernels import counter_uniform, k_bit_decode, k_bit_encode, one_bit_decode, one_bit_encode

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BITS = [2, 4, 8]
LARGEST_BF16 = torch.finfo(torch.bfloat16).max


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def ends(payload: Tensor) -> Tensor:
    return payload[:, :4].clone(memory_format=torch.contiguous_format).view(torch.bfloat16).double()


def transmit(rows: Tensor, bits: int, stream: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    payload = k_bit_encode(rows, bits, torch.arange(rows.size(0)), stream)
    return k_bit_decode(payload, bits, rows.size(1), dtype or rows.dtype)


def codes(payload: Tensor, bits: int, num_features: int) -> Tensor:
    """Take the codes out of a payload one by one, as the layout describes them."""
    per_byte = 8 // bits
    columns = [
        payload[:, 4 + column // per_byte].long() >> (column % per_byte * bits) & (2**bits - 1)
        for column in range(num_features)
    ]
    return torch.stack(columns, dim=1)


# --- one bit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (200, 61), (7, 700)])
def test_one_bit_of_these_ops_is_the_one_bit_ops(dtype: torch.dtype, shape: tuple[int, int]):
    rows, key = normal(*shape, dtype=dtype), torch.arange(shape[0]) * 7
    payload = one_bit_encode(rows, key, 3)
    assert torch.equal(k_bit_encode(rows, 1, key, 3), payload)
    assert torch.equal(k_bit_decode(payload, 1, shape[1], dtype), one_bit_decode(payload, shape[1], dtype))


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_features", [0, 1, 2, 3, 4, 5, 7, 8, 9, 61])
@pytest.mark.parametrize("num_rows", [0, 1, 13])
def test_bytes_are_four_and_k_bits_for_each_value(num_rows: int, num_features: int, bits: int):
    rows = normal(num_rows, num_features)
    payload = k_bit_encode(rows, bits, torch.arange(num_rows), 0)
    assert payload.dtype == torch.uint8
    assert payload.is_contiguous()
    assert payload.shape == (num_rows, 4 + math.ceil(num_features * bits / 8))
    assert k_bit_decode(payload, bits, num_features, torch.float32).shape == rows.shape


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_features", [2, 3, 4, 5, 9, 61])
def test_codes_lie_as_documented(num_features: int, bits: int):
    rows = normal(50, num_features, dtype=torch.float64).clamp(-4, 4)
    rows[:, 0] = 4.0  # both ends are there and representable
    rows[:, -1] = -4.0
    payload = k_bit_encode(rows, bits, torch.arange(50), 9)
    level = (rows + 4.0) / 8.0 * (2**bits - 1)
    expected = level.floor() + (counter_uniform(torch.arange(50), 9, num_features) < level.frac())
    assert torch.equal(codes(payload, bits, num_features), expected.long())
    unused = 8 * (payload.size(1) - 4) - num_features * bits
    assert not (payload[:, -1] >> (8 - unused)).any()
    decoded = k_bit_decode(payload, bits, num_features, torch.float64)
    torch.testing.assert_close(decoded, expected / (2**bits - 1) * 8.0 - 4.0, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bits", BITS)
def test_payload_may_be_any_part_of_a_message(bits: int):
    rows = normal(6, 9)
    payload = k_bit_encode(rows, bits, torch.arange(6), 0)
    expected = k_bit_decode(payload, bits, 9, torch.float32)
    message = torch.zeros(3 + payload.numel(), dtype=torch.uint8)
    message[3:] = payload.flatten()
    assert torch.equal(k_bit_decode(message[3:].view(6, -1), bits, 9, torch.float32), expected)
    wide = torch.zeros(6, 20, dtype=torch.uint8)
    wide[:, 3 : 3 + payload.size(1)] = payload
    assert torch.equal(k_bit_decode(wide[:, 3 : 3 + payload.size(1)], bits, 9, torch.float32), expected)
    assert torch.equal(k_bit_decode(payload[::2], bits, 9, torch.float32), expected[::2])


# --- levels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_are_those_of_one_bit_and_values_stay_inside(dtype: torch.dtype, bits: int):
    rows, key = normal(300, 20, dtype=dtype), torch.arange(300)
    sent = ends(k_bit_encode(rows, bits, key, 0))
    assert torch.equal(sent, ends(one_bit_encode(rows, key, 0)))
    decoded = transmit(rows, bits, dtype=torch.float64)
    step = (sent[:, 1:] - sent[:, :1]) / (2**bits - 1)
    assert (sent[:, :1] <= decoded).all()
    assert (decoded <= sent[:, 1:]).all()
    assert ((decoded - rows.double()).abs() <= step * (1 + 1e-6)).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_at_an_end_is_always_exact_and_one_on_a_level_in_all_but_one_of_a_million(
    bits: int, dtype: torch.dtype
):
    """The upper end must not pass the last code, nor a level fall to the one below."""
    rows = torch.arange(2**bits, dtype=dtype).sub(2 ** (bits - 1)).expand(20_000, -1)
    decoded = transmit(rows, bits)
    assert torch.equal(decoded[:, [0, -1]], rows[:, [0, -1]])
    assert float((decoded.round() != rows).double().mean()) < 1e-6


# --- special rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, -2.5, 2.0**-14, 65280.0])
@pytest.mark.parametrize("num_features", [1, 11])
def test_constant_rows_are_exact_if_bf16_holds_them(dtype: torch.dtype, value: float, num_features: int, bits: int):
    rows = torch.full((4, num_features), value, dtype=dtype)
    assert torch.equal(transmit(rows, bits), rows)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_features", [1, 9])
def test_rows_that_are_not_finite_decode_to_nan_and_leave_others_alone(
    bad: float, dtype: torch.dtype, num_features: int, bits: int
):
    rows = normal(5, num_features, dtype=dtype)
    clean = transmit(rows, bits)
    rows[2, num_features // 2] = bad
    decoded = transmit(rows, bits)
    assert decoded[2].isnan().all()
    assert torch.equal(decoded[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("bits", BITS)
def test_values_beyond_bf16_or_the_type_decode_to_nan(bits: int):
    assert transmit(torch.tensor([[0.0, torch.finfo(torch.float32).max]]), bits).isnan().all()
    assert transmit(torch.tensor([[1.0, -1e200]], dtype=torch.float64), bits).isnan().all()
    half = torch.tensor([[0.0, 65504.0]], dtype=torch.float16)
    assert transmit(half, bits).isnan().all()
    assert transmit(half, bits, dtype=torch.float32).tolist() == [[0.0, 65536.0]]


@pytest.mark.parametrize("bits", BITS)
def test_the_widest_finite_row_does_not_overflow(bits: int):
    decoded = transmit(torch.tensor([[-LARGEST_BF16, 0.0, LARGEST_BF16]]), bits)
    assert decoded[0, [0, 2]].tolist() == [-LARGEST_BF16, LARGEST_BF16]
    assert abs(float(decoded[0, 1])) <= LARGEST_BF16 / (2**bits - 1) * (1 + 1e-6)


# --- statistics -------------------------------------------------------------------------------------------------------

ROWS = {
    "normal": normal(1, 37),
    "tiny": normal(1, 37) * 1e-8,
    "subnormal": normal(1, 37) * 1e-39,
    "large": normal(1, 37) * 1e37,
    "offset": normal(1, 37) * 1e-2 + 100.0,
    "after ReLU": normal(1, 37).relu(),
    "bf16": normal(1, 37, dtype=torch.bfloat16),
    "float16": normal(1, 37, dtype=torch.float16),
    "float64": normal(1, 37, dtype=torch.float64),
    "float64 beyond float32": normal(1, 37, dtype=torch.float64) * 1e-42,
}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ROWS)
def test_decoding_is_unbiased_with_the_variance_it_states(name: str, bits: int):
    row, times = ROWS[name], 20_000
    lo, hi = ends(k_bit_encode(row, bits, torch.tensor([0]), 0))[0].tolist()
    # In units of a step, where float64 does not underflow either.
    step = (hi - lo) / (2**bits - 1)
    decoded = (transmit(row.expand(times, -1), bits, stream=123, dtype=torch.float64) - lo) / step
    expected = (row[0].double() - lo) / step
    assert float((decoded - decoded.round()).abs().max()) < 1e-6
    assert ((decoded - expected).abs() < 1 + 1e-6).all()
    sigma = (expected.frac() * (1 - expected.frac()) / times).sqrt()
    mean = decoded.mean(dim=0)
    assert ((mean - expected).abs() <= 4 * sigma + 2**bits * 1e-6).all()
    # Jointly too: the squared errors of independent columns, in units of sigma, average to one.
    inner = sigma > 1e-3
    score = ((mean - expected)[inner] / sigma[inner]).square().mean()
    assert abs(float(score) - 1) < 4 * (2 / int(inner.sum())) ** 0.5
    spread = decoded.var(dim=0)[inner] / (sigma[inner] ** 2 * times)
    assert float((spread - 1).abs().max()) < 0.2


def test_more_bits_are_less_noise():
    rows = normal(2000, 64)
    error = [float((transmit(rows, bits) - rows).square().mean()) for bits in (1, 2, 4, 8)]
    # About (2 ** b - 1) squared apart; one bit is worse than the rule, since values lie far from both ends.
    assert error[0] > 9 * error[1] > 9 * 20 * error[2] > 9 * 20 * 250 * error[3] > 0


# --- what does not enter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_features", [1, 9, 700])
def test_company_and_strides_do_not_enter(num_features: int, bits: int):
    rows, key = normal(400, num_features), torch.arange(400) * 31
    whole = k_bit_encode(rows, bits, key, 5)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(k_bit_encode(rows[order], bits, key[order], 5), whole[order])
    assert torch.equal(k_bit_encode(rows[17:18], bits, key[17:18], 5), whole[17:18])
    assert torch.equal(k_bit_encode(rows.t().contiguous().t(), bits, key, 5), whole)
    assert not torch.equal(k_bit_encode(rows, bits, key, 6), whole)


# --- torch.library ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "shape", "dtype"),
    [(1, (3, 10), torch.float32), (2, (3, 9), torch.bfloat16), (4, (0, 5), torch.float64), (8, (3, 0), torch.float16)],
)
def test_ops_keep_the_rules_of_torch_library(bits: int, shape: tuple[int, int], dtype: torch.dtype):
    rows, key = normal(*shape, dtype=dtype), torch.arange(shape[0])
    torch.library.opcheck(torch.ops.gnncomm.k_bit_encode.default, (rows, bits, key, 3))
    payload = k_bit_encode(rows, bits, key, 3)
    torch.library.opcheck(torch.ops.gnncomm.k_bit_decode.default, (payload, bits, shape[1], dtype))


def test_wrong_arguments_are_named():
    rows, key = normal(3, 10), torch.arange(3)
    with pytest.raises(ValueError, match="1, 2, 4 or 8 bits a value, got 3"):
        k_bit_encode(rows, 3, key, 0)
    with pytest.raises(ValueError, match="1, 2, 4 or 8 bits a value, got 16"):
        k_bit_decode(torch.zeros(3, 24, dtype=torch.uint8), 16, 10, torch.float32)
    with pytest.raises(ValueError, match="as many keys as rows"):
        k_bit_encode(rows, 2, key[:2], 0)
    with pytest.raises(ValueError, match="floating-point rows"):
        k_bit_encode(rows.long(), 2, key, 0)
    with pytest.raises(ValueError, match="7 bytes for each row"):
        k_bit_decode(torch.zeros(3, 6, dtype=torch.uint8), 2, 10, torch.float32)
