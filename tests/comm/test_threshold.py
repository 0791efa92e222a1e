"""Gradients above a threshold: what is sent, what is held back, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.codecs.sparse import sparse_nbytes
from lightning_gnncomm.comm.threshold import ThresholdState, swap_counts
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.testing import run_threads

SHAPES = [(60, 40), (7,), (400,), (1,)]
NAMES = ["weight", "bias", "table", "scale"]


def gradients_of(rank: int, step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def run(
    wire: Wire,
    steps: int,
    state: ThresholdState,
    dtype: torch.dtype = torch.float64,
    orders: Sequence[Sequence[Sequence[int]]] = ([[0, 1, 2, 3]],),
) -> tuple[list[list[Tensor]], dict[str, tuple[Tensor, Tensor]]]:
    """Reduce in buckets of parameters; those of ``orders`` in turn."""
    parameters = [torch.zeros(shape) for shape in SHAPES]
    results = []
    for step in range(steps):
        gradients = gradients_of(wire.rank, step, dtype)
        for bucket in orders[min(step, len(orders) - 1)]:
            state.reduce(wire, [parameters[k] for k in bucket], [gradients[k] for k in bucket])
        results.append(gradients)
    return results, state.residuals(zip(NAMES, parameters, strict=True))


def assert_same(results: list[list[Tensor]], others: list[list[Tensor]]) -> None:
    for one, other in zip(results, others, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_with_density_1_the_mean_is_exact(size: int) -> None:
    for results, residuals in run_threads(lambda wire: run(wire, 3, ThresholdState(density=1.0)), size):
        for step, result in enumerate(results):
            for number, mean in enumerate(result):
                expected = sum(gradients_of(rank, step)[number] for rank in range(size)) / size
                torch.testing.assert_close(mean, expected, rtol=1e-14, atol=1e-14)
        assert all(not part.any() for pair in residuals.values() for part in pair)


@pytest.mark.parametrize("size", [2, 3])
def test_nothing_is_lost_and_all_ranks_have_the_same_bits(size: int) -> None:
    steps = 30
    ranks = run_threads(lambda wire: run(wire, steps, ThresholdState(density=0.02, refresh=4)), size)
    for results, _ in ranks[1:]:
        assert_same(results, ranks[0][0])
    for number, name in enumerate(NAMES):
        true = sum(gradients_of(rank, step)[number] for rank in range(size) for step in range(steps)) / size
        applied = sum(result[number] for result in ranks[0][0])
        held = sum(residuals[name][0] for _, residuals in ranks) / size
        owed = torch.cat([residuals[name][1] for _, residuals in ranks])
        assert bool(held.any()) == bool(owed.any()) == (len(SHAPES[number]) == 2 or number == 2), name
        torch.testing.assert_close(applied + (held + owed).view_as(applied), true, rtol=0, atol=1e-12)


def test_without_what_was_held_back_gradients_are_lost() -> None:
    """The twin: a state that forgets ends away from the true sum."""

    def forgetting(wire: Wire) -> Tensor:
        state = ThresholdState(density=0.02)
        applied = torch.zeros(SHAPES[0], dtype=torch.float64)
        for step in range(10):
            gradients = gradients_of(wire.rank, step)[:1]
            state.reset()
            state.reduce(wire, [torch.zeros(SHAPES[0])], gradients)
            applied += gradients[0]
        return applied

    true = sum(gradients_of(rank, step)[0] for rank in range(2) for step in range(10)) / 2
    assert all((applied - true).norm() > 0.5 * true.norm() for applied in run_threads(forgetting, 2))


def test_each_rank_alone_sends_what_it_does_not_hold_back() -> None:
    state = ThresholdState(density=0.1, refresh=3)
    parameter, sent, true = torch.zeros(SHAPES[0]), torch.zeros(2400).double(), torch.zeros(2400).double()
    for step in range(20):
        gradient = gradients_of(0, step)[0].flatten()
        sent += state._keep(state._own, parameter, gradient)
        true += gradient
        torch.testing.assert_close(sent + state._own[parameter].residual, true, rtol=0, atol=1e-12)


def test_refreshed_at_every_step_exactly_the_largest_are_sent_and_later_the_count_drifts() -> None:
    counts: dict[int, list[int]] = {}
    for refresh in (1, 10):
        numbers = counts[refresh] = []
        state, parameter, thresholds = ThresholdState(density=0.05, refresh=refresh), torch.zeros(SHAPES[0]), []
        for step in range(20):
            gradient = gradients_of(0, step)[0].flatten()
            held = state._own[parameter].residual.clone() if step else torch.zeros_like(gradient)
            sent = state._keep(state._own, parameter, gradient)
            if step % refresh == 0:
                largest = (gradient + held).abs().topk(120).indices.sort().values
                assert torch.equal(sent.nonzero().view(-1), largest)
            numbers.append(int((sent != 0).sum()))
            thresholds.append(state._own[parameter].threshold.item())
        changes = [step for step in range(1, 20) if thresholds[step] != thresholds[step - 1]]
        assert changes == list(range(refresh, 20, refresh))
    assert set(counts[1]) == {120}
    assert counts[10][0] == counts[10][10] == 120
    assert counts[10][9] > 200


def test_buckets_do_not_enter() -> None:
    def states() -> ThresholdState:
        return ThresholdState(density=0.02, refresh=4)

    plain = run_threads(lambda wire: run(wire, 8, states()), 3)
    moved = run_threads(lambda wire: run(wire, 8, states(), orders=([[0, 1], [2, 3]], [[3, 2], [1], [0]])), 3)
    for (results, _), (others, _) in zip(plain, moved, strict=True):
        assert_same(results, others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_follow_the_formula(dtype: torch.dtype) -> None:
    size, steps = 3, 6

    def counted(wire: Wire) -> Any:
        exchanged: list[int] = []
        exchange = wire.exchange

        def noted(send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Any:
            exchanged.append(sum(send_sizes))
            assert send_sizes[wire.rank] == 0
            return exchange(send, send_sizes, recv_sizes)

        wire.exchange = noted  # type: ignore[method-assign]
        state, predicted = ThresholdState(density=0.03), 0
        keep = state._keep

        def spied(memory: Any, parameter: Tensor, values: Tensor) -> Tensor:
            nonlocal predicted
            kept = keep(memory, parameter, values)
            if memory is state._own:
                shards = [kept.tensor_split(size)[peer] for peer in range(size) if peer != wire.rank]
            else:
                shards = [kept] * (size - 1)
            for shard in shards:
                predicted += 4 + sparse_nbytes(shard.numel(), int((shard != 0).sum()), dtype.itemsize)
            return kept

        state._keep = spied  # type: ignore[method-assign]
        run(wire, steps, state, dtype)
        return state.record, sum(exchanged), predicted

    for record, exchanged, predicted in run_threads(counted, size):
        assert record.sent_bytes == exchanged == predicted
        assert record.dense_bytes == steps * sum(4 * torch.Size(s).numel() * dtype.itemsize // 3 for s in SHAPES)
        assert record.exchanges == steps


def test_a_state_continues_from_its_state() -> None:
    def interrupted(wire: Wire) -> list[Tensor]:
        parameter, results = torch.zeros(SHAPES[0]), []
        state = ThresholdState(density=0.02, refresh=4)
        for step in range(10):
            gradients = gradients_of(wire.rank, step)[:1]
            state.reduce(wire, [parameter], gradients)
            results.append(gradients[0])
            saved = state.state_dict([("weight", parameter)])
            parameter, state = torch.zeros(SHAPES[0]), ThresholdState(density=0.02, refresh=4)
            state.load_state_dict(saved, [("weight", parameter)])
        return results

    plain = run_threads(lambda wire: run(wire, 10, ThresholdState(density=0.02, refresh=4)), 2)
    for results, (expected, _) in zip(run_threads(interrupted, 2), plain, strict=True):
        assert all(torch.equal(a, b[0]) for a, b in zip(results, expected, strict=True))


def test_one_step_that_is_not_finite_passes() -> None:
    def shaken(wire: Wire) -> tuple[Tensor, Tensor]:
        state, parameter, results = ThresholdState(density=0.02), torch.zeros(SHAPES[0]), []
        for step in range(2):
            gradient = gradients_of(wire.rank, step)[0]
            if step == 0 and wire.rank == 1:
                gradient[3, 4] = torch.nan
            state.reduce(wire, [parameter], [gradient])
            results.append(gradient)
        return results[0], results[1]

    for first, second in run_threads(shaken, 2):
        assert first.isnan().nonzero().tolist() == [[3, 4]]
        assert second.isfinite().all()


def test_counts_of_the_own_rank_stay_at_home() -> None:
    def swapped(wire: Wire) -> list[list[int]]:
        return swap_counts(wire, torch.tensor([[10 * wire.rank + peer, 7] for peer in range(3)])).tolist()

    for rank, rows in enumerate(run_threads(swapped, 3)):
        assert rows == [[0, 0] if peer == rank else [10 * peer + rank, 7] for peer in range(3)]
