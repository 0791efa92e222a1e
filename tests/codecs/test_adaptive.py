"""Widths by slot: the budget, the least variance by brute force, what enters the choice, and resuming."""

import itertools
import json
import random

import pytest
import torch

from lightning_gnncomm.codecs import (
    AdaptiveWidthCodec,
    ChoosingCodec,
    KBitCodec,
    OneBitCodec,
    RoundingKey,
    SlotStatistics,
)
from lightning_gnncomm.codecs.adaptive import choose_widths, rounding_variance
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.testing import run_threads

WIDTHS = (1, 2, 4, 8)
FORWARD = [Slot(f"convs.{number}", "x") for number in range(4)]
BACKWARD = [slot.as_role(Role.GRADIENT) for slot in FORWARD]

Statistics = dict[Slot, SlotStatistics]


def instance(seed: int, num_slots: int, decades: float = 3.0) -> Statistics:
    """Slots of 1 to 10,000 values, whose squared ranges differ by so many decades."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 10_000) for _ in range(num_slots)]
    return {
        Slot(f"convs.{number}", "x"): SlotStatistics(size, size * 10 ** draw.uniform(-decades, 0))
        for number, size in enumerate(sizes)
    }


def variance(statistics: Statistics, widths: dict[Slot, int]) -> float:
    return sum(rounding_variance(statistics[slot], widths[slot]) for slot in statistics)


def mean_bits(statistics: Statistics, widths: dict[Slot, int]) -> float:
    total = sum(numbers.num_values for numbers in statistics.values())
    return sum(statistics[slot].num_values * widths[slot] for slot in statistics) / total


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1.0, 1.7, 2.0, 2.9, 4.0, 6.3, 8.0])
@pytest.mark.parametrize("decades", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_variance_is_the_least_within_the_budget(seed: int, decades: float, budget: float):
    statistics = instance(seed, 1 + seed, decades)
    within = [
        choice
        for widths in itertools.product(WIDTHS, repeat=len(statistics))
        if mean_bits(statistics, choice := dict(zip(statistics, widths, strict=True))) <= budget + 1e-12
    ]
    least = min(variance(statistics, choice) for choice in within)
    chosen = choose_widths(statistics, budget, WIDTHS)
    assert mean_bits(statistics, chosen) <= budget + 1e-6
    assert variance(statistics, chosen) == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_equal_widths_for_the_same_bytes(seed: int, width: int):
    statistics = instance(seed, 30)
    chosen = choose_widths(statistics, width, WIDTHS)
    equal = dict.fromkeys(statistics, width)
    assert mean_bits(statistics, chosen) <= width + 1e-6
    assert variance(statistics, chosen) <= variance(statistics, equal) * (1 + 1e-8)
    if 1 < width < 8:
        assert variance(statistics, chosen) < 0.9 * variance(statistics, equal)


@pytest.mark.parametrize("budget", [1.5, 2.0, 3.0, 5.0])
def test_of_slots_of_one_size_the_heavier_get_more_bits(budget: float):
    statistics = {slot: SlotStatistics(1000, 10.0**number) for number, slot in enumerate(FORWARD)}
    widths = choose_widths(statistics, budget, WIDTHS)
    assert [widths[slot] for slot in FORWARD] == sorted(widths.values())
    assert widths[FORWARD[0]] < widths[FORWARD[-1]]


def test_the_order_of_slots_and_the_thread_do_not_enter():
    statistics = instance(3, 12)
    shuffled = dict(random.Random(0).sample(list(statistics.items()), len(statistics)))
    expected = choose_widths(statistics, 2.3, WIDTHS)
    assert choose_widths(shuffled, 2.3, WIDTHS) == expected
    assert run_threads(lambda wire: choose_widths(statistics, 2.3, WIDTHS), 3) == [expected] * 3


def test_equal_slots_get_the_same_widths_on_every_call():
    statistics = {slot: SlotStatistics(100, 50.0) for slot in FORWARD}
    assert choose_widths(statistics, 2.5, WIDTHS) == choose_widths(dict(reversed(statistics.items())), 2.5, WIDTHS)


def test_slots_without_values_get_nothing_and_constant_rows_something():
    empty, constant = SlotStatistics(0, 0.0), SlotStatistics(10, 0.0)
    assert choose_widths({}, 2.0, WIDTHS) == {}
    assert choose_widths({FORWARD[0]: empty}, 2.0, WIDTHS) == {}
    widths = choose_widths({FORWARD[0]: empty, FORWARD[1]: constant, FORWARD[2]: constant}, 2.0, WIDTHS)
    assert set(widths) == {FORWARD[1], FORWARD[2]}
    assert sum(widths.values()) <= 4


def test_a_budget_that_no_width_keeps_is_an_error():
    with pytest.raises(ValueError, match=r"a budget that the widths \(2, 4\) can keep, got 1.5"):
        choose_widths({FORWARD[0]: SlotStatistics(10, 1.0)}, 1.5, (2, 4))


# --- the variance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 4, 8])
def test_the_stated_variance_is_the_measured_one(width: int):
    """For values that are spread evenly over their row, as the rule assumes."""
    rows = torch.rand(4000, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 - 1
    codec = KBitCodec(width)
    payload = codec.encode(rows, RoundingKey(1, torch.arange(4000)))
    squared = float((codec.decode(payload, 256, torch.float64) - rows).square().sum())
    numbers = SlotStatistics(*ChoosingCodec.statistics_of(rows).tolist())
    assert squared == pytest.approx(rounding_variance(numbers, width), rel=0.02)


def test_statistics_add_up_over_parts_of_any_size():
    rows = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
    whole = ChoosingCodec.statistics_of(rows)
    parts = sum(ChoosingCodec.statistics_of(part) for part in (rows[:30], rows[30:30], rows[30:]))
    torch.testing.assert_close(parts, whole)
    lo, hi = rows.double().aminmax(dim=1)
    assert whole.tolist() == pytest.approx([700, float(7 * ((hi - lo) ** 2).sum())])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_statistics_of_nothing_are_zeros_of_the_same_shape(shape: tuple[int, int]):
    assert ChoosingCodec.statistics_of(torch.zeros(shape)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_that_are_not_finite_do_not_spoil_the_choice(bad: float, dtype: torch.dtype):
    rows = torch.tensor([[0.0, 2.0], [0.0, bad], [0.0, 1.0]], dtype=dtype)
    assert ChoosingCodec.statistics_of(rows).tolist() == [6.0, 10.0]
    huge = torch.tensor([[-1e300, 1e300]], dtype=torch.float64)
    assert ChoosingCodec.statistics_of(huge).tolist() == [2.0, 0.0]


# --- the codec --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "widths", "expected"),
    [(1.0, WIDTHS, 1), (2.0, WIDTHS, 2), (3.9, WIDTHS, 2), (100.0, WIDTHS, 8), (7.0, (8, 4), 4), (2.0, (1,), 1)],
)
def test_before_an_observation_all_have_the_largest_width_within_the_budget(
    budget: float, widths: tuple[int, ...], expected: int
):
    codec = AdaptiveWidthCodec(budget, widths)
    for slot in (FORWARD[0], BACKWARD[2]):
        encodes = codec.for_slot(slot)
        assert isinstance(encodes, OneBitCodec) if expected == 1 else encodes.bits == expected  # type: ignore[attr-defined]


def test_an_observation_changes_the_slots_it_names():
    codec = AdaptiveWidthCodec(2.5)
    codec.observe({FORWARD[0]: SlotStatistics(100, 1.0), FORWARD[1]: SlotStatistics(100, 1000.0)})
    assert repr(codec.for_slot(FORWARD[0])) == "OneBitCodec()"
    assert repr(codec.for_slot(FORWARD[1])) == "KBitCodec(bits=4)"
    assert repr(codec.for_slot(FORWARD[2])) == repr(codec.for_slot(BACKWARD[0])) == "KBitCodec(bits=2)"
    codec.observe({FORWARD[0]: SlotStatistics(100, 1000.0), FORWARD[1]: SlotStatistics(100, 1.0)})
    assert repr(codec.for_slot(FORWARD[0])) == "KBitCodec(bits=4)"
    codec.observe({FORWARD[0]: SlotStatistics(0, 0.0)})
    assert repr(codec.for_slot(FORWARD[0])) == "KBitCodec(bits=4)"


def test_gradients_however_small_have_a_budget_of_their_own():
    codec = AdaptiveWidthCodec(2.0)
    features = {slot: SlotStatistics(100, 10.0**number) for number, slot in enumerate(FORWARD)}
    gradients = {slot: SlotStatistics(100, 1e-12 * 10.0**number) for number, slot in enumerate(BACKWARD)}
    codec.observe(features | gradients)
    for forward, backward in zip(FORWARD, BACKWARD, strict=True):
        assert repr(codec.for_slot(forward)) == repr(codec.for_slot(backward))
    assert repr(codec.for_slot(BACKWARD[-1])) == "KBitCodec(bits=4)"


def test_a_resumed_run_continues_with_the_widths_it_had():
    codec = AdaptiveWidthCodec(2.5)
    codec.observe(instance(0, 4) | {BACKWARD[1]: SlotStatistics(5, 1.0)})
    state = json.loads(json.dumps(codec.state_dict()))  # plain data
    resumed = AdaptiveWidthCodec(2.5)
    assert json.loads(json.dumps(resumed.state_dict())) != state
    resumed.load_state_dict(state)
    assert json.loads(json.dumps(resumed.state_dict())) == state
    for slot in (*FORWARD, BACKWARD[1]):
        assert repr(resumed.for_slot(slot)) == repr(codec.for_slot(slot))
    resumed.load_state_dict({})
    assert resumed.state_dict() == AdaptiveWidthCodec().state_dict()


def test_widths_of_a_checkpoint_must_be_among_its_own():
    codec = AdaptiveWidthCodec(8.0)
    codec.observe({FORWARD[0]: SlotStatistics(5, 1.0)})
    with pytest.raises(ValueError, match=r"among \(1, 2\), got 8 for convs.0.x"):
        AdaptiveWidthCodec(2.0, (1, 2)).load_state_dict(codec.state_dict())


def test_bad_arguments_say_what_is_expected():
    with pytest.raises(ValueError, match=r"at least the smallest of the widths \(2, 4\), got 1.5"):
        AdaptiveWidthCodec(1.5, (2, 4))
    with pytest.raises(ValueError, match="smallest of the widths"):
        AdaptiveWidthCodec(2.0, ())
    with pytest.raises(ValueError, match="smallest of the widths"):
        AdaptiveWidthCodec(float("nan"))
    with pytest.raises(ValueError, match=r"one of \(2, 4, 8\).*got 3"):
        AdaptiveWidthCodec(2.0, (1, 3))
    with pytest.raises(ValueError, match="positive number of steps, got 0"):
        AdaptiveWidthCodec(every=0)
