"""The record of a run: a file of JSON lines that grows by one with each epoch, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Decision
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Slot

__all__ = ["EVENTS", "Epoch", "Message", "Run", "append_event", "mend_events", "read_run"]

EVENTS = Path("gnncomm", "events.jsonl")
"""Where the record lies in the folder of a run."""

_VERSION = 1


class Message(NamedTuple):
    """When a rank sent a message, or waited for what was due in its place.

    Args:
        rank: The rank.
        slot: The message.
        is_wait: Whether it waited.
        start: Seconds since the epoch began on that rank.
        seconds: How long it waited, 0 for sending.
    """

    rank: int
    slot: Slot
    is_wait: bool
    start: float
    seconds: float

    def to_plain(self) -> list[Any]:
        """Return it as plain data."""
        return [self.rank, self.slot.as_plain(), self.is_wait, round(self.start, 7), round(self.seconds, 7)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Message:
        """Return the message that :meth:`to_plain` described."""
        rank, slot, is_wait, start, seconds = plain
        return cls(int(rank), Slot.from_plain(slot), bool(is_wait), float(start), float(seconds))


@dataclass
class Epoch:
    """What all ranks did in one training epoch; what is given by rank is in the order of the ranks.

    Args:
        epoch: Its number.
        step: Training steps run up to its end.
        seconds: Duration of its training part, by rank.
        validation_seconds: Duration of validation in it, by rank.
        wait_seconds: Time that halo rows were waited for, by rank.
        hidden_seconds: Time that their transfers took while the rank computed, by rank.
        sent_bytes: Bytes of halo rows, by rank.
        metrics: The module's logged values.
        traffic: What all ranks sent, by message, parameter gradients among them.
        staleness: Ages and errors of all ranks, by message; the largest age is that so far.
        decisions: Step and content of what the schedule changed.
        messages: Single messages in the order of time, in the first epoch only.
    """

    epoch: int
    step: int
    seconds: list[float]
    validation_seconds: list[float]
    wait_seconds: list[float]
    hidden_seconds: list[float]
    sent_bytes: list[int]
    metrics: dict[str, float] = field(default_factory=dict)
    traffic: dict[Slot, TrafficRecord] = field(default_factory=dict)
    staleness: dict[Slot, StalenessRecord] = field(default_factory=dict)
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        plain = dict(vars(self))
        for name in ("traffic", "staleness"):
            plain[name] = [[slot.as_plain(), vars(record)] for slot, record in plain[name].items()]
        plain["decisions"] = [
            [step, decision.what, decision.why, None if decision.slot is None else decision.slot.as_plain()]
            for step, decision in self.decisions
        ]
        plain["messages"] = [message.to_plain() for message in self.messages]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Epoch:
        """Return the epoch that :meth:`to_plain` described."""
        values = dict(plain)
        values["traffic"] = {Slot.from_plain(slot): TrafficRecord(**record) for slot, record in plain["traffic"]}
        values["staleness"] = {Slot.from_plain(slot): StalenessRecord(**record) for slot, record in plain["staleness"]}
        values["decisions"] = [
            (step, Decision(what, why, None if slot is None else Slot.from_plain(slot)))
            for step, what, why, slot in plain["decisions"]
        ]
        values["messages"] = [Message.from_plain(message) for message in plain["messages"]]
        return cls(**values)


@dataclass
class Run:
    """What the record of a run says.

    Args:
        path: The folder of the run.
        settings: Ranks, strategy, codec, schedule and whatever else was noted when it was last started.
        epochs: Its epochs, by number. An epoch that was run again after a resume counts as it was last run, and with it all that
            came after it before.
        starts: How often it was started.
        has_ended: Whether it came to its end, and was not stopped before.
        is_cut: Whether the last line was being written when it was stopped.
        last_messages: Single messages of the last epoch, if it came to its end.
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    starts: int = 0
    has_ended: bool = False
    is_cut: bool = False
    last_messages: list[Message] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """Add what one line says."""
        steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "epoch": self._add_epoch,
            "end": self._end,
        }
        values = dict(event)
        steps[values.pop("event")](values)

    def _start(self, values: dict[str, Any]) -> None:
        if values.pop("version") != _VERSION:
            raise ValueError("it is of another release of lightning_gnncomm")
        self.settings, self.has_ended, self.last_messages = values, False, []
        self.starts += 1

    def _add_epoch(self, values: dict[str, Any]) -> None:
        epoch = Epoch.from_plain(values)
        self.epochs = [other for other in self.epochs if other.epoch < epoch.epoch]
        self.epochs.append(epoch)

    def _end(self, values: dict[str, Any]) -> None:
        self.has_ended = True
        self.last_messages = [Message.from_plain(message) for message in values["messages"]]


def append_event(path: Path, event: str, values: Mapping[str, Any]) -> None:
    """Write one line at the end of a record; what was written before is safe whatever happens after.

    Values that are not finite are written as ``NaN`` and ``Infinity``, which Python's JSON reads.
    """
    versioned = {"version": _VERSION} if event == "start" else {}
    line = json.dumps({"event": event, **versioned, **values})
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def mend_events(path: Path) -> None:
    """Make a record ready for more lines: it exists, in a folder of its own, and a half-written last line is taken off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        written = file.read()
        file.truncate(written.rfind(b"\n") + 1)


def read_run(path: str | Path) -> Run:
    """Read the record of a run.

    Args:
        path: The folder of the run, with the file ``gnncomm/events.jsonl``. A half-written last line is passed over.

    Raises:
        FileNotFoundError: If there is no record there; the message names folders below that have one.
        ValueError: If it holds no epoch, or something else than a record.
    """
    path = Path(path)
    file = path / EVENTS
    if not file.is_file():
        raise FileNotFoundError(f"Expected the folder of a run with {EVENTS} in it, got '{path}'. {_where(path)}")
    run = Run(path)
    *lines, rest = file.read_text(encoding="utf-8", errors="replace").split("\n")
    run.is_cut = bool(rest)
    for number, line in enumerate(lines, 1):
        _take_line(run, line, f"{file}, line {number}")
    if not run.epochs:
        raise ValueError(f"Expected at least one epoch in {file}, got none: a line is written when an epoch ends.")
    return run


def _take_line(run: Run, line: str, where: str) -> None:
    try:
        run.take(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"Expected a line of a run's record, got something else in {where} ({type(error).__name__}: {error})."
        ) from error


def _where(path: Path) -> str:
    found = sorted(str(file.parents[1]) for file in path.glob(f"**/{EVENTS}"))[:5] if path.is_dir() else []
    if found:
        return f"There is one in {', '.join(found)}."
    if not path.exists():
        return "There is no such folder."
    return "A run is recorded by the callback RunRecorder: gnncomm fit --trainer.callbacks+=RunRecorder."
