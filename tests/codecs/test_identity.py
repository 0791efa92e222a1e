"""The identity codec: every type comes back bit for bit."""

import pytest
import torch

from lightning_gnncomm.codecs import IdentityCodec, RoundingKey

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (7, 5)])
def test_every_type_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, int]):
    rows = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    codec = IdentityCodec()
    payload = codec.encode(rows, RoundingKey(0, torch.arange(shape[0])))
    assert payload.shape == (shape[0], shape[1] * dtype.itemsize)
    decoded = codec.decode(payload, shape[1], dtype)
    assert decoded.dtype == dtype
    assert torch.equal(decoded, rows)


def test_special_values_keep_their_bits():
    rows = torch.tensor([[torch.nan, torch.inf, -torch.inf, -0.0, 1e-45]])
    codec = IdentityCodec()
    decoded = codec.decode(codec.encode(rows, RoundingKey(0, torch.arange(1))), 5, torch.float32)
    assert torch.equal(decoded.view(torch.int32), rows.view(torch.int32))


def test_contiguous_rows_are_not_copied():
    rows = torch.rand(4, 3)
    payload = IdentityCodec().encode(rows, RoundingKey(0, torch.arange(4)))
    assert payload.data_ptr() == rows.data_ptr()
    assert IdentityCodec().decode(payload, 3, torch.float32).data_ptr() == rows.data_ptr()
