"""When a message is due: decisions that every rank takes alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.slots import Slot

__all__ = [
    "SCHEDULES",
    "Action",
    "Asynchronous",
    "Decision",
    "Observation",
    "Schedule",
    "Synchronous",
    "resolve_schedule",
]


class Action(Enum):
    """What to do with a message at a step."""

    FRESH = "fresh"  # send now, wait, use what arrives
    STALE = "stale"  # send now, use what arrived before


@dataclass(frozen=True)
class Observation:
    """What all ranks together saw in a window of steps: the same numbers on each of them.

    Args:
        loss: Mean training loss of the window, NaN if unknown.
        refresh_seconds: Mean duration of its steps in which every message was waited for, NaN if there was none.
        stale_seconds: The same for its other steps.
        slots: Errors and ages by slot, summed over ranks and steps.
    """

    loss: float = float("nan")
    refresh_seconds: float = float("nan")
    stale_seconds: float = float("nan")
    slots: Mapping[Slot, StalenessRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """Something a schedule changed, for people to see.

    Args:
        what: ``"interval"``, ``"refresh"`` or ``"synchronous"``.
        why: The numbers that led to it.
        slot: The slot it is about, ``None`` for all.
    """

    what: str
    why: str
    slot: Slot | None = None

    def __str__(self) -> str:
        return f"{self.what} of {self.slot or 'all messages'}: {self.why}"


class Schedule(ABC):
    """Decides, for every slot and step, whether its rows are waited for.

    Decisions depend on the arguments and on observations that are the same on every rank, so all ranks decide alike without a
    message.
    """

    max_staleness: int | None = 0
    """Largest age in steps of rows in use; ``None`` without a bound."""

    window: int | None = None
    """After how many steps it wants an :class:`Observation`, ``None`` for never."""

    @abstractmethod
    def action(self, slot: Slot, step: int, age: int | None) -> Action:
        """Return the action of ``slot`` at ``step``; ``age`` is that of the rows last sent, in steps, ``None`` without any."""

    def is_refresh(self, step: int) -> bool:
        """Whether every message of a step is waited for."""
        return True

    def observe(self, step: int, observation: Observation) -> list[Decision]:
        """Take what was seen up to ``step`` and return what it changes."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return what was decided so far, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; there is nothing to continue unless a schedule decides something."""
        assert not state, state


class Synchronous(Schedule):
    """Every message is sent, waited for and used in its own step (Sylvie-S, Sylvie section 4).

    Example:
        >>> Synchronous().action(Slot("conv", "x"), step=3, age=1).value
        'fresh'
    """

    def __repr__(self) -> str:
        return "Synchronous()"

    def action(self, slot: Slot, step: int, age: int | None) -> Action:
        """Return :attr:`Action.FRESH`."""
        return Action.FRESH


class Asynchronous(Schedule):
    """Rows are sent without waiting and used one step later (Sylvie-A), within a bound (the Bounded Staleness Adaptor).

    With ``max_staleness=1`` a step uses exactly the rows of the step before, forward and backward. With a larger bound it uses the
    newest rows that have arrived and waits only for those that would otherwise be older: links that stutter then stop nobody, but a
    run no longer repeats bit for bit.

    Every ``refresh_every``-th step is synchronous. ``"adaptive"`` doubles and halves that interval, up to ``max_interval``, at
    the end of each window: it shrinks where the loss rose or rows drifted beyond ``drift_bound``, grows otherwise, and becomes 1
    while a synchronous step costs no more than an asynchronous one.

    The divergence guard looks at each slot's drift: the error of the rows in use that does not average out over a window,
    relative to the rows. A slot beyond ``drift_bound`` is refreshed at the next step; one that is beyond it for ``patience``
    windows in a row becomes synchronous for good. Both are decided from numbers summed over all ranks.

    Args:
        refresh_every: Steps from one synchronous step to the next, ``"adaptive"``, or ``None`` for none but the first.
        max_staleness: Largest age of rows in use in steps; ``None`` uses whatever has arrived, however old.
        drift_bound: Relative drift that the guard accepts; ``None`` switches it off.
        patience: Windows after which a slot beyond the bound becomes synchronous.
        window: Steps from one look at the errors to the next.
        max_interval: Largest interval of ``"adaptive"``.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> schedule, slot = Asynchronous(refresh_every=4), Slot("conv", "x")
        >>> [schedule.action(slot, step, age=1 if step else None).value for step in range(5)]
        ['fresh', 'stale', 'stale', 'fresh', 'stale']
    """

    def __init__(
        self,
        refresh_every: int | Literal["adaptive"] | None = None,
        max_staleness: int | None = 1,
        drift_bound: float | None = None,
        patience: int = 3,
        window: int = 10,
        max_interval: int = 128,
    ) -> None:
        is_adaptive = refresh_every == "adaptive"
        if not (is_adaptive or refresh_every is None or (isinstance(refresh_every, int) and refresh_every >= 1)):
            raise ValueError(f"Expected refresh_every to be at least 1, 'adaptive' or None, got {refresh_every!r}.")
        limits = {"max_staleness": max_staleness, "patience": patience, "window": window, "max_interval": max_interval}
        for name, value in limits.items():
            if value is not None and value < 1:
                raise ValueError(f"Expected {name} to be at least 1, got {value}.")
        if drift_bound is not None and drift_bound <= 0:
            raise ValueError(f"Expected drift_bound to be above 0 or None, got {drift_bound}.")
        self.refresh_every = refresh_every
        self.max_staleness = max_staleness
        self.drift_bound = drift_bound
        self.patience = patience
        self.max_interval = max_interval
        self.is_adaptive = is_adaptive
        self.window = window if self.is_adaptive or drift_bound is not None else None
        self.interval = 4 if isinstance(refresh_every, str) else refresh_every
        self._since_probe = 0
        self._loss = float("nan")
        self._due: set[Slot] = set()
        self._failures: dict[Slot, int] = {}
        self.synchronous: set[Slot] = set()

    def __repr__(self) -> str:
        options = (
            f"refresh_every={self.refresh_every!r}, max_staleness={self.max_staleness}, drift_bound={self.drift_bound}"
        )
        return f"Asynchronous({options})"

    def action(self, slot: Slot, step: int, age: int | None) -> Action:
        """Return :attr:`Action.FRESH` where rows are missing, too old, guarded, or due for a refresh; else :attr:`Action.STALE`."""
        too_old = age is None or (self.max_staleness is not None and age > self.max_staleness)
        if too_old or slot in self.synchronous or self.is_refresh(step):
            self._due.discard(slot)
            return Action.FRESH
        if slot in self._due:
            self._due.discard(slot)
            return Action.FRESH
        return Action.STALE

    def is_refresh(self, step: int) -> bool:
        """Whether every message of a step is waited for: each ``interval``-th one."""
        return self.interval is not None and (step + 1) % self.interval == 0

    def observe(self, step: int, observation: Observation) -> list[Decision]:
        """Adapt the interval and guard the slots."""
        beyond = self._beyond(observation)
        decisions = [self._guard(slot, drift) for slot, drift in beyond.items()]
        for slot in observation.slots:
            if slot not in beyond:
                self._failures.pop(slot, None)
        if self.is_adaptive:
            decisions += self._adapt(observation, max(beyond.values(), default=0.0))
        if observation.loss == observation.loss:
            self._loss = observation.loss
        return decisions

    def _beyond(self, observation: Observation) -> dict[Slot, float]:
        if self.drift_bound is None:
            return {}
        drifts = {slot: record.relative_drift for slot, record in observation.slots.items()}
        # Written so that NaN is beyond.
        return {
            slot: drift
            for slot, drift in drifts.items()
            if slot not in self.synchronous and not drift <= self.drift_bound
        }

    def _guard(self, slot: Slot, drift: float) -> Decision:
        self._failures[slot] = self._failures.get(slot, 0) + 1
        why = f"drift {drift:.2f} above {self.drift_bound:g}"
        if self._failures[slot] < self.patience:
            self._due.add(slot)
            return Decision("refresh", why, slot)
        self.synchronous.add(slot)
        return Decision("synchronous", f"{why} for {self.patience} windows", slot)

    def _adapt(self, observation: Observation, worst: float) -> list[Decision]:
        assert self.interval is not None
        before, refresh, stale = self.interval, observation.refresh_seconds, observation.stale_seconds
        if before == 1:
            # Nothing was asynchronous, so what that would cost is not known any more.
            self._since_probe += 1
            if self._since_probe < 5:
                return []
            self.interval, why = 2, "looking again what asynchronous steps cost"
        elif refresh <= 1.05 * stale:
            self.interval, why = 1, f"a synchronous step takes {refresh:.3g} s, an asynchronous one {stale:.3g} s"
        elif worst > 0:
            self.interval, why = max(2, before // 2), f"drift {worst:.2f}"
        elif observation.loss > 1.01 * self._loss:
            self.interval, why = max(2, before // 2), f"loss rose from {self._loss:.4g} to {observation.loss:.4g}"
        else:
            self.interval, why = min(self.max_interval, 2 * before), "errors small, loss falling"
        self._since_probe = 0
        return [] if self.interval == before else [Decision("interval", f"{before} -> {self.interval} steps, {why}")]

    def state_dict(self) -> dict[str, Any]:
        """Return what was decided so far, as plain data."""
        return {
            "interval": self.interval,
            "since_probe": self._since_probe,
            "loss": self._loss,
            "due": [slot.as_plain() for slot in self._due],
            "synchronous": [slot.as_plain() for slot in self.synchronous],
            "failures": [(slot.as_plain(), number) for slot, number in self._failures.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; a fixed ``refresh_every`` stays as it was set."""
        if self.is_adaptive:
            self.interval = state["interval"]
        self._since_probe, self._loss = state["since_probe"], state["loss"]
        self._due = {Slot.from_plain(plain) for plain in state["due"]}
        self.synchronous = {Slot.from_plain(plain) for plain in state["synchronous"]}
        self._failures = {Slot.from_plain(plain): number for plain, number in state["failures"]}


def _adaptive() -> Schedule:
    return Asynchronous("adaptive", drift_bound=0.5)


SCHEDULES: dict[str, Callable[[], Schedule]] = {"sync": Synchronous, "async": Asynchronous, "adaptive": _adaptive}
"""What makes a schedule, by the schedule's name."""


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """Return a schedule from its name or pass an instance through.

    Raises:
        ValueError: If no schedule has that name; the message lists those that exist.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise ValueError(f"Expected a schedule instance or one of {sorted(SCHEDULES)}, got {schedule!r}.")
    return SCHEDULES[schedule]()
