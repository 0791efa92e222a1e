"""Sparse values come back as they were, from as many bytes as the formula says, in each of the three layouts."""

import pytest
import torch

from lightning_gnncomm.codecs.sparse import pack_sparse, sparse_nbytes, unpack_sparse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_values", [0, 1, 7, 300, 65_536, 65_537, 200_001])
@pytest.mark.parametrize("density", [0.0, 0.003, 0.2, 1.0])
def test_values_come_back_from_the_promised_bytes(num_values: int, density: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_values)
    values = torch.randn(num_values, generator=generator).to(dtype)
    values[torch.rand(num_values, generator=generator) >= density] = 0
    payload, count = pack_sparse(values)
    assert count == int((values != 0).sum())
    assert payload.numel() == sparse_nbytes(num_values, count, dtype.itemsize)
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), payload))[1:]  # somewhere in a message
    assert torch.equal(unpack_sparse(shifted, num_values, count, dtype), values)


def test_each_layout_is_the_shortest_somewhere() -> None:
    # All values, a bitmap, positions in one block, and in two blocks.
    assert sparse_nbytes(1000, 990, 4) == 4000
    assert sparse_nbytes(1000, 500, 4) == 125 + 2000
    assert sparse_nbytes(1000, 50, 4) == 50 * 6
    assert sparse_nbytes(70_000, 50, 4) == 2 * 4 + 50 * 6


def test_what_is_not_finite_is_kept() -> None:
    values = torch.tensor([0.0, torch.nan, 0.0, -torch.inf])
    torch.testing.assert_close(unpack_sparse(*pack_sparse(values)[:1], 4, 2, torch.float32), values, equal_nan=True)
