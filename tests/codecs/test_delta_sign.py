"""The delta-sign codec with the memory that a channel keeps for it: what is held comes to the row that is sent."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.codecs import Codec, DeltaSignCodec, KBitCodec, OneBitCodec, RoundingKey


def relative_errors(codec: Codec, rows: Iterator[Tensor], steps: int) -> list[float]:
    """Send ``steps`` rows as differences to what is held; return how far off that is after each."""
    held, errors = torch.zeros(()), []
    for step, row in zip(range(steps), rows, strict=False):
        held = torch.zeros_like(row) if step == 0 else held
        payload = codec.encode(row - held, RoundingKey(step, torch.arange(row.size(0))))
        held = held + codec.decode(payload, row.size(1), row.dtype)
        errors.append(float((row - held).norm() / row.norm()))
    return errors


def fixed(num_rows: int, num_features: int, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    row = torch.randn(num_rows, num_features, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    while True:
        yield row


@pytest.mark.parametrize(
    ("group_size", "nbytes"), [(128, [0, 3, 10, 36, 72]), (32, [0, 3, 12, 48, 96]), (1, [0, 3, 136, 544, 1088])]
)
def test_row_nbytes_are_signs_and_scales(group_size: int, nbytes: list[int]):
    codec = DeltaSignCodec(group_size)
    widths = (0, 1, 64, 256, 512)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert [codec.row_nbytes(width, dtype) for width in widths] == nbytes


def test_a_group_needs_a_column():
    with pytest.raises(ValueError, match="positive group_size, got 0"):
        DeltaSignCodec(0)


def test_the_key_does_not_enter():
    row = next(fixed(5, 20))
    first, other = (DeltaSignCodec().encode(row, RoundingKey(stream, torch.arange(5) + stream)) for stream in (1, 2))
    assert torch.equal(first, other)


@pytest.mark.parametrize(("num_features", "group_size"), [(64, 128), (64, 16), (61, 16), (7, 3), (1, 1)])
def test_what_is_held_comes_to_a_fixed_row_geometrically(num_features: int, group_size: int):
    codec, steps = DeltaSignCodec(group_size), 150
    errors = relative_errors(codec, fixed(20, num_features), steps)
    bound = (1 - (1 - 2.0**-16) / min(group_size, num_features)) ** 0.5
    for before, after in zip([1.0, *errors[:-1]], errors, strict=True):
        assert after <= before * bound + 1e-14
    assert errors[-1] < 1e-2


@pytest.mark.parametrize("codec", [OneBitCodec(), KBitCodec(2)], ids=repr)
def test_an_unbiased_code_with_an_error_above_one_diverges_where_this_one_converges(codec: Codec):
    """One bit errs by more than the difference itself, and the next difference holds that error; two bits do not."""
    first, *_, last = relative_errors(codec, fixed(20, 64), 60)
    if isinstance(codec, OneBitCodec):
        assert first > 1
        assert not last < 1e10  # it may have become NaN
    else:
        assert last < first < 1


def test_rows_that_move_slowly_are_followed_closely():
    """The error settles at the distance moved, not at the length of the row; without a memory it stays at the latter."""
    start, way = torch.randn(2, 20, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moving = (start + 1e-3 * step * way for step in range(1000))
    errors = relative_errors(DeltaSignCodec(), moving, 300)
    codec, key = DeltaSignCodec(), RoundingKey(0, torch.arange(20))
    alone = float((codec.decode(codec.encode(start, key), 64, start.dtype) - start).norm() / start.norm())
    assert errors[0] == pytest.approx(alone)
    assert errors[-1] < 0.05 < 0.5 < alone


def test_after_a_row_that_is_not_finite_what_is_held_stays_loud():
    row = next(fixed(3, 20, torch.float32))
    bad = row.clone()
    bad[1, 3] = torch.inf
    held = torch.zeros_like(row)
    codec, key = DeltaSignCodec(8), RoundingKey(0, torch.arange(3))
    for sent in (row, bad, row):
        held += codec.decode(codec.encode(sent - held, key), 20, torch.float32)
    assert held[1, :8].isnan().all()
    assert held[1, 8:].isfinite().all()
    assert held[[0, 2]].isfinite().all()
