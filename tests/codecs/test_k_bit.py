"""The k-bit codec as its users see it; its arithmetic is tested with the kernels."""

import pytest
import torch

from lightning_gnncomm.codecs import KBitCodec, OneBitCodec, RoundingKey, resolve_codec

KEY = RoundingKey(3, torch.arange(50))


@pytest.mark.parametrize(
    ("bits", "nbytes"), [(2, [4, 5, 5, 6, 20, 68]), (4, [4, 5, 6, 7, 36, 132]), (8, [4, 5, 8, 9, 68, 260])]
)
def test_row_nbytes_are_the_bits_and_two_ends(bits: int, nbytes: list[int]):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert [KBitCodec(bits).row_nbytes(width, dtype) for width in (0, 1, 4, 5, 64, 256)] == nbytes


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_names_say_the_bits(bits: int):
    codec = resolve_codec(f"{bits}bit")
    assert isinstance(codec, KBitCodec)
    assert codec.bits == bits


@pytest.mark.parametrize("bits", [0, 1, 3, 16])
def test_other_widths_are_refused(bits: int):
    with pytest.raises(ValueError, match=rf"one of \(2, 4, 8\) \(one bit is OneBitCodec\), got {bits}"):
        KBitCodec(bits)


def test_ends_are_those_of_one_bit():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(KBitCodec(4).encode(rows, KEY)[:, :4], OneBitCodec().encode(rows, KEY)[:, :4])


def test_rows_in_an_autograd_graph_may_be_encoded_and_integers_are_refused():
    rows = torch.rand(50, 3, requires_grad=True) * 2
    assert not KBitCodec(2).encode(rows, KEY).requires_grad
    with pytest.raises(ValueError, match="floating-point rows, got torch.int64"):
        KBitCodec(2).encode(torch.ones(50, 3, dtype=torch.int64), KEY)
