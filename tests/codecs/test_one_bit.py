"""The one-bit codec as its users see it; its arithmetic is tested with the kernels."""

import pytest
import torch

from lightning_gnncomm.codecs import OneBitCodec, RoundingKey


@pytest.mark.parametrize(("num_features", "nbytes"), [(0, 4), (1, 5), (8, 5), (9, 6), (64, 12), (256, 36)])
def test_row_nbytes_is_the_papers_figure(num_features: int, nbytes: int):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert OneBitCodec().row_nbytes(num_features, dtype) == nbytes


def test_the_compression_of_wide_rows_is_the_papers():
    assert 256 * 4 / OneBitCodec().row_nbytes(256, torch.float32) == pytest.approx(28.4, abs=0.05)
    assert 64 * 4 / OneBitCodec().row_nbytes(64, torch.float32) == pytest.approx(21.3, abs=0.05)


def test_integers_are_refused():
    with pytest.raises(ValueError, match="floating-point rows, got torch.int64"):
        OneBitCodec().encode(torch.ones(2, 3, dtype=torch.int64), RoundingKey(0, torch.arange(2)))


def test_rows_in_an_autograd_graph_may_be_encoded():
    rows = torch.rand(2, 3, requires_grad=True) * 2
    payload = OneBitCodec().encode(rows, RoundingKey(0, torch.arange(2)))
    assert not payload.requires_grad


def test_a_round_trip_keeps_the_mean_of_a_large_message():
    rows = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0))
    codec = OneBitCodec()
    decoded = codec.decode(codec.encode(rows, RoundingKey(1, torch.arange(4000))), 32, torch.float32)
    error = decoded - rows
    assert abs(float(error.mean())) < 4 * float(error.std()) / error.numel() ** 0.5
