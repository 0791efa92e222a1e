"""When a message is due: pure decisions that every rank takes alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from lightning_gnncomm.slots import Slot

__all__ = ["SCHEDULES", "Action", "Schedule", "Synchronous", "resolve_schedule"]


class Action(Enum):
    """What to do with a message at a step."""

    FRESH = "fresh"  # send now, wait, use what arrives
    STALE = "stale"  # send now, use what arrived last time
    REUSE = "reuse"  # send nothing, use what arrived last time


class Schedule(ABC):
    """Decides, for every slot and step, whether its rows are waited for.

    A schedule is a pure function of its arguments, so all ranks decide alike without a message.
    """

    @abstractmethod
    def action(self, slot: Slot, step: int, age: int | None) -> Action:
        """Return the action of ``slot`` at ``step``; ``age`` is the age of the rows at hand in steps, ``None`` without any."""


class Synchronous(Schedule):
    """Every message is sent, waited for and used in its own step (Sylvie-S, Sylvie section 4).

    Example:
        >>> Synchronous().action(Slot("conv", "x"), step=3, age=1).value
        'fresh'
    """

    def action(self, slot: Slot, step: int, age: int | None) -> Action:
        """Return :attr:`Action.FRESH`."""
        return Action.FRESH


SCHEDULES: dict[str, type[Schedule]] = {"sync": Synchronous}
"""Schedules by name."""


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
