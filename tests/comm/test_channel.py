"""Messages that are not waited for: whose rows are used, how old they are, and that nothing stays in flight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.codecs import Codec, IdentityCodec, OneBitCodec
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.schedule import Asynchronous, Schedule, Synchronous
from lightning_gnncomm.comm.wire import Pending, Wire
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.testing import run_threads

RANKS = 3
X = Slot("conv", "x")
COUNTS = [2, 2, 2]


class LatePending:
    """A transfer that is there when waited for, and at any look before only by chance."""

    def __init__(self, pending: Pending, chance: random.Random, slowness: float) -> None:
        self._pending, self._chance, self._slowness = pending, chance, slowness
        self.seconds = 0.0

    def wait(self) -> Tensor:
        return self._pending.wait()

    def done(self) -> bool:
        return self._chance.random() > self._slowness


class LateWire:
    """A wire on which each rank sees transfers arrive late, each rank differently."""

    def __init__(self, wire: Wire, slowness: float) -> None:
        self._wire, self.rank, self.world_size = wire, wire.rank, wire.world_size
        self._chance, self._slowness = random.Random(wire.rank), slowness

    def exchange(self, send: Tensor, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> Pending:
        return LatePending(self._wire.exchange(send, send_sizes, recv_sizes), self._chance, self._slowness)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        return self._wire.all_reduce(tensor, op)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._wire.all_gather(tensor)


KEY = torch.arange(sum(COUNTS))


def rows_of(rank: int, step: int) -> Tensor:
    return torch.randn(sum(COUNTS), 5, generator=torch.Generator().manual_seed(100 * step + rank))


def expected(rank: int, step: int) -> Tensor:
    """What arrives at a rank from all ranks at a step."""
    start = 2 * rank
    return torch.cat([rows_of(peer, step)[start : start + 2] for peer in range(RANKS)])


def received(
    wire: Wire, schedule: Schedule, steps: Sequence[int], codec: Codec | None = None, slowness: float = 1.0
) -> Any:
    channel = Channel(LateWire(wire, slowness), codec or IdentityCodec(), schedule)
    results = [channel.carry([(X, rows_of(wire.rank, step))], COUNTS, COUNTS, step, KEY)[0] for step in steps]
    return results, channel.staleness[X]


@pytest.mark.parametrize(
    ("schedule", "ages"),
    [
        (Synchronous, [0, 0, 0, 0, 0, 0, 0]),
        (Asynchronous, [0, 1, 1, 1, 1, 1, 1]),
        (lambda: Asynchronous(refresh_every=3), [0, 1, 0, 1, 1, 0, 1]),
        (lambda: Asynchronous(refresh_every=1), [0, 0, 0, 0, 0, 0, 0]),
        (lambda: Asynchronous(max_staleness=3), [0, 1, 2, 3, 3, 3, 3]),  # nothing arrives before it is waited for
        (lambda: Asynchronous(max_staleness=3, refresh_every=3), [0, 1, 0, 1, 2, 0, 1]),
        (lambda: Asynchronous(max_staleness=None), [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_rows_of_the_right_step_are_used(schedule: Any, ages: list[int]) -> None:
    for rank, (results, record) in enumerate(run_threads(lambda wire: received(wire, schedule(), range(7)), RANKS)):
        for step, age in enumerate(ages):
            assert torch.equal(results[step], expected(rank, step - age)), (rank, step)
        assert record.uses == 7
        assert record.age == sum(ages)
        assert record.oldest == max(ages)
        assert record.refreshes == ages.count(0)


def test_a_step_without_the_message_makes_the_next_one_fresh() -> None:
    for rank, (results, record) in enumerate(
        run_threads(lambda wire: received(wire, Asynchronous(), [0, 1, 3, 4]), RANKS)
    ):
        for result, used in zip(results, [0, 0, 3, 3], strict=True):
            assert torch.equal(result, expected(rank, used))
        assert record.oldest == 1


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_no_rows_are_older_than_the_bound_in_500_steps_of_random_delays_and_without_a_bound_they_are(
    bound: int,
) -> None:
    for _, record in run_threads(
        lambda wire: received(wire, Asynchronous(max_staleness=bound), range(500), slowness=0.9), RANKS
    ):
        assert record.oldest == bound
        assert record.uses == 500
    unbounded = run_threads(
        lambda wire: received(wire, Asynchronous(max_staleness=None), range(500), slowness=0.9), RANKS
    )
    assert max(record.oldest for _, record in unbounded) > bound


def test_newest_rows_that_have_arrived_are_used() -> None:
    results = run_threads(lambda wire: received(wire, Asynchronous(max_staleness=4), range(50), slowness=0.0), RANKS)
    for rank, (rows, record) in enumerate(results):
        assert record.oldest == 1
        assert torch.equal(rows[49], expected(rank, 48))


@pytest.mark.parametrize("when", [0, 1, 5])
def test_draining_changes_nothing(when: int) -> None:
    def drained(wire: Wire) -> list[Tensor]:
        channel = Channel(LateWire(wire, 1.0), OneBitCodec(), Asynchronous(refresh_every=4))
        results = []
        for step in range(8):
            results.append(channel.carry([(X, rows_of(wire.rank, step))], COUNTS, COUNTS, step, KEY)[0])
            if step == when:
                channel.drain()
                assert not any(lane.flights for lane in channel._lanes.values())
        return results

    plain = run_threads(lambda wire: received(wire, Asynchronous(refresh_every=4), range(8), OneBitCodec()), RANKS)
    for rows, (wanted, _) in zip(run_threads(drained, RANKS), plain, strict=True):
        assert all(map(torch.equal, rows, wanted))


@pytest.mark.parametrize("codec", [IdentityCodec, OneBitCodec])
def test_a_channel_continues_from_its_state(codec: Any) -> None:
    def interrupted(wire: Wire) -> list[Tensor]:
        results = []
        channel = Channel(LateWire(wire, 1.0), codec(), Asynchronous(refresh_every=4))
        for step in range(8):
            results.append(channel.carry([(X, rows_of(wire.rank, step))], COUNTS, COUNTS, step, KEY)[0])
            state = channel.state_dict()
            channel = Channel(LateWire(wire, 1.0), codec(), Asynchronous(refresh_every=4))
            channel.load_state_dict(state)
        return results

    plain = run_threads(lambda wire: received(wire, Asynchronous(refresh_every=4), range(8), codec()), RANKS)
    for rows, (wanted, _) in zip(run_threads(interrupted, RANKS), plain, strict=True):
        assert all(map(torch.equal, rows, wanted))


def test_exact_messages_and_other_parts_leave_the_memory_alone() -> None:
    def mixed(wire: Wire) -> None:
        channel = Channel(wire, OneBitCodec(), Asynchronous())
        for step in range(4):
            channel.carry([(X, rows_of(wire.rank, step))], COUNTS, COUNTS, step, KEY)
            (exact,) = channel.carry([(X, rows_of(wire.rank, 50))], COUNTS, COUNTS, 50, KEY, exact=True)
            norm = X.as_role(Role.NORM)
            (norms,) = channel.carry([(norm, rows_of(wire.rank, step))], COUNTS, COUNTS, step, KEY)
            assert torch.equal(exact, expected(wire.rank, 50))
            assert torch.equal(norms, expected(wire.rank, step))
        assert channel.staleness[X].oldest == 1
        other = KEY.clone()
        channel.carry([(X, rows_of(wire.rank, 4))], COUNTS, COUNTS, 4, other)
        assert channel.staleness[X].refreshes == 2  # the rows at hand are those of another part

    run_threads(mixed, RANKS)


def test_errors_are_measured_where_rows_are_sent() -> None:
    def probed(wire: Wire, codec: Codec, schedule: Schedule, moves: bool = True) -> Any:
        channel = Channel(wire, codec, schedule)
        for step in range(20):
            channel.carry([(X, rows_of(wire.rank, step * moves))], COUNTS, COUNTS, step, KEY)
        channel.close_window()
        return channel.staleness[X]

    for record in run_threads(lambda wire: probed(wire, IdentityCodec(), Synchronous()), RANKS):
        assert record.relative_error == record.relative_drift == 0
        assert record.norm > 0
    for record in run_threads(lambda wire: probed(wire, IdentityCodec(), Asynchronous()), RANKS):
        # Rows are drawn anew at each step: their difference has sqrt(2) times their norm, and averages out.
        assert record.relative_error == pytest.approx(2**0.5, rel=0.15)
        assert record.relative_drift < 0.6
    for record in run_threads(lambda wire: probed(wire, OneBitCodec(), Synchronous(), moves=False), RANKS):
        assert 0.3 < record.relative_error < 1.5
        assert record.relative_drift < record.relative_error / 3
