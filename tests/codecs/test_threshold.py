"""Which values a threshold lets pass."""

from typing import Any

import pytest
import torch

from lightning_gnncomm.codecs import IdentityCodec, RoundingKey, ThresholdCodec
from lightning_gnncomm.slots import Slot

ROWS = torch.randn(40, 25, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("density", [0.001, 0.05, 0.3])
def test_a_fresh_threshold_keeps_the_largest_values(density: float) -> None:
    codec = ThresholdCodec(density)
    kept = codec.keep(ROWS, codec.thresholds(ROWS))
    places = ROWS.abs().flatten().topk(max(1, round(density * 1000))).indices
    assert kept.flatten().nonzero().view(-1).tolist() == places.sort().values.tolist()
    assert torch.equal(kept.flatten()[places], ROWS.flatten()[places])


def test_a_threshold_of_each_row_keeps_as_many_in_each() -> None:
    scales = torch.logspace(-3, 3, 40).view(-1, 1)
    by_row, by_tensor = (ThresholdCodec(0.2, scope=scope) for scope in ("row", "tensor"))
    rows = ROWS * scales
    assert (by_row.keep(rows, by_row.thresholds(rows)) != 0).sum(1).tolist() == [5] * 40
    counts = (by_tensor.keep(rows, by_tensor.thresholds(rows)) != 0).sum(1)
    assert int(counts.sum()) == 200
    assert counts.tolist() != [5] * 40


def test_where_most_values_are_zero_fewer_are_kept_than_allowed() -> None:
    codec, rows = ThresholdCodec(0.5), ROWS * (ROWS > 1.5)
    thresholds = codec.thresholds(rows)
    assert thresholds.item() == 0
    assert torch.equal(codec.keep(rows, thresholds), rows)


def test_what_is_not_finite_passes_and_moves_no_threshold() -> None:
    codec, rows = ThresholdCodec(0.01), ROWS.clone()
    rows[3, 4], rows[5, 6] = torch.nan, torch.inf
    kept = codec.keep(rows, codec.thresholds(rows))
    assert kept[3, 4].isnan()
    assert kept[5, 6].isinf()
    assert codec.thresholds(rows).isfinite().all()


def test_everything_is_exact() -> None:
    assert isinstance(ThresholdCodec(1.0).for_slot(Slot("conv", "x")), IdentityCodec)
    assert isinstance(ThresholdCodec(0.99).for_slot(Slot("conv", "x")), ThresholdCodec)


@pytest.mark.parametrize("arguments", [{"density": 0}, {"density": 1.1}, {"refresh": 0}, {"scope": "column"}])
def test_arguments_out_of_range_are_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ThresholdCodec(**arguments)


def test_rows_have_no_bytes_of_their_own() -> None:
    codec = ThresholdCodec()
    assert codec.row_nbytes(8, torch.float32) is None
    with pytest.raises(TypeError, match="as a whole"):
        codec.encode(ROWS, RoundingKey(0, torch.arange(40)))
    with pytest.raises(TypeError, match="as a whole"):
        codec.decode(torch.empty(0, 0, dtype=torch.uint8), 8, torch.float32)
