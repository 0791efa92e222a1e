"""When to refresh and whom to let wait: decided from numbers that are the same on all ranks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import SCHEDULES, Action, Asynchronous, Observation, Synchronous, resolve_schedule
from lightning_gnncomm.slots import Role, Slot

A, B = Slot("convs.0", "x"), Slot("convs.1", "x", role=Role.GRADIENT)


def drifting(**drifts: float) -> dict[Slot, StalenessRecord]:
    """Records of slots A and B with a given relative drift."""
    return {slot: StalenessRecord(drift=drifts[name] ** 2, drift_norm=1.0) for name, slot in (("a", A), ("b", B))}


def observation(
    loss: float = 1.0, refresh: float = 2.0, stale: float = 1.0, a: float = 0.0, b: float = 0.0
) -> Observation:
    return Observation(loss, refresh, stale, drifting(a=a, b=b))


def actions(schedule: Any, steps: range, slot: Slot = A) -> str:
    return "".join("F" if schedule.action(slot, step, 1) is Action.FRESH else "s" for step in steps)


def test_names_make_new_schedules() -> None:
    for name in SCHEDULES:
        assert resolve_schedule(name) is not resolve_schedule(name)
    assert resolve_schedule("adaptive").is_adaptive
    with pytest.raises(ValueError, match="'adaptive', 'async', 'sync'.*got 'later'"):
        resolve_schedule("later")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"refresh_every": 0}, "refresh_every to be at least 1, 'adaptive' or None, got 0"),
        ({"refresh_every": "often"}, "got 'often'"),
        ({"max_staleness": 0}, "max_staleness to be at least 1, got 0"),
        ({"window": 0}, "window to be at least 1"),
        ({"patience": -1}, "patience to be at least 1"),
        ({"drift_bound": 0.0}, "drift_bound to be above 0 or None"),
    ],
)
def test_bad_arguments_say_what_is_expected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Asynchronous(**arguments)


@pytest.mark.parametrize("age", [None, 3])
def test_missing_and_too_old_rows_are_fresh(age: int | None) -> None:
    assert Asynchronous(max_staleness=2).action(A, 7, age) is Action.FRESH
    assert Asynchronous(max_staleness=2).action(A, 7, 2) is Action.STALE
    assert Asynchronous(max_staleness=None).action(A, 7, 99) is Action.STALE
    assert Synchronous().action(A, 7, age) is Action.FRESH


def test_the_guard_refreshes_only_the_slot_beyond_its_bound_and_makes_it_synchronous_if_it_stays_there() -> None:
    schedule = Asynchronous(drift_bound=0.5, patience=2, window=5)
    assert [d.what for d in schedule.observe(5, observation(a=0.6, b=0.4))] == ["refresh"]
    assert actions(schedule, range(5, 10)) == "Fssss"
    assert actions(schedule, range(5, 10), B) == "sssss"
    (decision,) = schedule.observe(10, observation(a=0.7, b=0.4))
    assert (decision.what, decision.slot) == ("synchronous", A)
    assert actions(schedule, range(10, 15)) == "FFFFF"
    assert actions(schedule, range(10, 15), B) == "sssss"
    assert schedule.observe(15, observation(a=0.9)) == []  # known already


def test_a_slot_that_recovers_has_its_patience_back() -> None:
    schedule = Asynchronous(drift_bound=0.5, patience=2)
    for a in (0.6, 0.1, 0.6, 0.1):
        schedule.observe(10, observation(a=a))
    assert not schedule.synchronous


def test_rows_that_are_no_numbers_are_beyond_any_bound() -> None:
    schedule = Asynchronous(drift_bound=0.5, patience=1)
    (decision,) = schedule.observe(10, observation(a=math.nan))
    assert decision.slot == A


def test_errors_that_have_nothing_in_common_are_no_drift() -> None:
    noise = StalenessRecord(error=10.0, norm=10.0, drift=10.0, drift_norm=100.0)  # ten steps of unit errors
    common = StalenessRecord(error=10.0, norm=10.0, drift=100.0, drift_norm=100.0)
    assert noise.relative_drift == 0
    assert common.relative_drift == pytest.approx(0.9**0.5)
    assert noise.relative_error == common.relative_error == 1


def test_the_interval_grows_while_all_is_well_and_shrinks_when_it_is_not() -> None:
    schedule = Asynchronous("adaptive", drift_bound=0.5, max_interval=16)
    seen = []
    for loss, drift in ((1.0, 0), (0.9, 0), (0.8, 0), (0.9, 0), (0.8, 0.7), (0.7, 0)):
        schedule.observe(10, observation(loss, a=drift))
        seen.append(schedule.interval)
    assert seen == [8, 16, 16, 8, 4, 8]


def test_refreshes_come_at_the_interval() -> None:
    schedule = Asynchronous(refresh_every=4)
    assert actions(schedule, range(9)) == "sssFsssFs"
    assert [schedule.is_refresh(step) for step in range(4)] == [False, False, False, True]


def test_waiting_that_costs_nothing_is_preferred_and_its_cost_looked_at_again() -> None:
    schedule = Asynchronous("adaptive")
    schedule.observe(10, observation(refresh=1.0, stale=1.0))
    assert schedule.interval == 1
    for _ in range(5):
        schedule.observe(10, observation(refresh=1.0, stale=math.nan))
    assert schedule.interval == 2
    schedule.observe(10, observation(refresh=3.0, stale=1.0))
    assert schedule.interval == 4


def test_decisions_are_carried_on() -> None:
    schedule = Asynchronous("adaptive", drift_bound=0.5, patience=2)
    for a in (0.6, 0.6):
        schedule.observe(10, observation(a=a, b=a))
    schedule.observe(30, observation(b=0.0))
    state = schedule.state_dict()
    resumed = Asynchronous("adaptive", drift_bound=0.5, patience=2)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert json.dumps(resumed.state_dict()) == json.dumps(state)
    assert resumed.synchronous == {A, B}
    assert resumed.interval == schedule.interval
