"""The counter-based generator: what it depends on, and that it looks random in every counter."""

import pytest
import torch

from lightning_gnncomm.kernels import counter_uniform
from lightning_gnncomm.slots import Role, Slot


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())).double())[0, 1])


def chi_square(uniform: torch.Tensor, bins: int) -> float:
    """Pearson's statistic against the uniform distribution, in standard deviations from its mean."""
    count = torch.histc(uniform.flatten(), bins, min=0.0, max=1.0).double()
    expected = uniform.numel() / bins
    freedom = bins - 1
    return float((((count - expected) ** 2).sum() / expected - freedom) / (2 * freedom) ** 0.5)


def test_numbers_depend_on_their_own_counters_only():
    key = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    whole = counter_uniform(key, 42, 61)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(counter_uniform(key[order], 42, 61), whole[order], rtol=0, atol=0)
    torch.testing.assert_close(counter_uniform(key[4321:4322], 42, 61), whole[4321:4322], rtol=0, atol=0)
    torch.testing.assert_close(counter_uniform(key, 42, 7), whole[:, :7], rtol=0, atol=0)
    torch.testing.assert_close(counter_uniform(key[::7], 42, 61), whole[::7], rtol=0, atol=0)


def test_numbers_are_the_same_in_every_release():
    """A restart from a checkpoint continues with the same rounding, so the generator is part of the format."""
    bits = (counter_uniform(torch.tensor([0, 1, 2**40]), 1, 2) * 2**24).long()
    assert bits.tolist() == [[10650391, 14666558], [9631647, 7800727], [13606531, 2114351]]


def test_the_number_of_threads_does_not_enter():
    key = torch.arange(3000)
    before = torch.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            results.append(counter_uniform(key, 5, 100))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_numbers_lie_in_the_half_open_interval_and_fill_it():
    uniform = counter_uniform(torch.arange(1 << 14), 3, 64)
    assert 0.0 <= float(uniform.min()) < 1e-5
    assert 1.0 - 1e-5 < float(uniform.max()) < 1.0
    assert torch.equal(uniform * 2**24, (uniform * 2**24).floor())


@pytest.mark.parametrize("stream", [0, 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("bins", [2, 16, 1000])
def test_numbers_are_uniform(stream: int, bins: int):
    assert abs(chi_square(counter_uniform(torch.arange(4096), stream, 64), bins)) < 4


def test_every_bit_is_fair():
    bits = (counter_uniform(torch.arange(4096), 9, 64) * 2**24).long()
    share = torch.stack([(bits >> i & 1).double().mean() for i in range(24)])
    assert float((share - 0.5).abs().max()) < 4 * 0.5 / bits.numel() ** 0.5


@pytest.mark.parametrize("shift", [1, 2, 7, 64, 2**20, 2**32, 2**40])
def test_neighbouring_rows_are_independent(shift: int):
    key = torch.arange(2048)
    a, b = counter_uniform(key, 1, 64), counter_uniform(key + shift, 1, 64)
    assert abs(correlation(a, b)) < 4 / a.numel() ** 0.5


@pytest.mark.parametrize("shift", [1, 2, 3, 8, 32])
def test_neighbouring_columns_are_independent(shift: int):
    uniform = counter_uniform(torch.arange(4096), 2, 65)
    a, b = uniform[:, shift:], uniform[:, :-shift]
    assert abs(correlation(a, b)) < 4 / a.numel() ** 0.5
    assert abs(correlation((a - 0.5) ** 2, (b - 0.5) ** 2)) < 4 / a.numel() ** 0.5


@pytest.mark.parametrize("other", [1, 2, 3, 1 << 20, 1 << 32, 1 << 62])
def test_streams_are_independent(other: int):
    key = torch.arange(2048)
    a, b = counter_uniform(key, 0, 64), counter_uniform(key, other, 64)
    assert abs(correlation(a, b)) < 4 / a.numel() ** 0.5
    assert abs(correlation(a[1:], b[:-1])) < 4 / a.numel() ** 0.5
    pairs = (a * 16).floor() * 16 + (b * 16).floor()
    assert abs(chi_square((pairs + 0.5) / 256, 256)) < 4


def test_slots_and_roles_give_independent_numbers():
    slot = Slot("convs.0", "x")
    others = [slot.as_role(Role.GRADIENT), Slot("convs.1", "x"), Slot("convs.0", "alpha"), Slot("convs.0", "x", call=1)]
    key = torch.arange(2048)
    uniform = counter_uniform(key, slot.key, 64)
    for other in others:
        assert abs(correlation(uniform, counter_uniform(key, other.key, 64))) < 4 / uniform.numel() ** 0.5


def test_no_two_rows_have_the_same_numbers():
    """Each row has 64 bits of seed, so that 200,000 rows do not meet (with 32 bits about five pairs would)."""
    words = (counter_uniform(torch.arange(200_000), 11, 3) * 2**24).long()
    assert torch.unique(words, dim=0).size(0) == 200_000


@pytest.mark.parametrize(("num_rows", "num_features"), [(0, 5), (5, 0), (0, 0), (1, 1)])
def test_empty_shapes(num_rows: int, num_features: int):
    assert counter_uniform(torch.arange(num_rows), 0, num_features).shape == (num_rows, num_features)


@pytest.mark.parametrize("key", [torch.arange(3, dtype=torch.int32), torch.arange(4).view(2, 2), torch.rand(3)])
def test_keys_must_be_an_int64_vector(key: torch.Tensor):
    with pytest.raises(ValueError, match="Expected .* got"):
        counter_uniform(key, 0, 4)
