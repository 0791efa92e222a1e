"""One training that measures accuracy, loss, bytes and drift over time; and a file that keeps what was measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from schemes import SINGLE, make_strategy
from shared import make_trainer
from torch import Tensor
from torch_geometric.data import Data
from torchmetrics import Metric

from lightning_gnncomm import CommunicationMonitor, GraphDataModule, HaloStrategy, NodeClassifier
from lightning_gnncomm.callbacks.events import mend_events
from lightning_gnncomm.comm.schedule import Decision, Observation, Schedule
from lightning_gnncomm.graph.store import read_manifest
from lightning_gnncomm.models.labels import Stage, mean_loss, select_labelled
from lightning_gnncomm.models.metrics import METRICS, update_metric
from lightning_gnncomm.slots import Role, Slot

HALO_ROLES = (Role.FEATURE, Role.GRADIENT)
STAGES: tuple[Stage, ...] = ("val", "test")
WINDOW = 10
"""Steps over which drift is measured where the schedule itself does not look at it."""


@dataclass(frozen=True)
class Setting:
    """What every run of a comparison has in common."""

    graph: str
    parts: int
    model: str
    hidden: int
    layers: int
    dropout: float
    lr: float
    weight_decay: float
    epochs: int
    validate_every: int
    normalize_features: bool
    metric: str
    heads: int
    jk: str | None

    @property
    def name(self) -> str:
        """The graph's name without its place."""
        return self.graph.rpartition("/")[2].removesuffix(".npz")

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """Arguments that only some models take."""
        kwargs: dict[str, Any] = {"heads": self.heads} if self.model == "GAT" else {}
        return kwargs if self.jk is None else kwargs | {"jk": self.jk}


class Point(NamedTuple):
    """A validation: after how many epochs, the loss, the metric of both stages, halo bytes sent until then."""

    epoch: int
    loss: float
    val: float
    test: float
    nbytes: int


class Message(NamedTuple):
    """A message of every training step: its width in values, and how often it was sent."""

    width: int
    exchanges: int


@dataclass
class Run:
    """What one training measured.

    Args:
        points: Its validations.
        bytes_per_epoch: Halo bytes of a typical epoch, all ranks together.
        seconds: Duration of ``fit``.
        rows: Rows that all ranks send in one exchange, as the partition says: known before anything is sent.
        messages: What was exchanged in training.
        waited: Share of the messages that were waited for.
        drifts: Relative drift by message, a value for each window.
        errors: Relative error of the rows in use, likewise.
        decisions: Step, kind, message and reason of each decision of the schedule.
    """

    points: list[Point]
    bytes_per_epoch: float
    seconds: float
    rows: int
    messages: list[Message]
    waited: float
    drifts: dict[str, list[float]]
    errors: dict[str, list[float]]
    decisions: list[tuple[int, str, str, str]]

    @property
    def best(self) -> float:
        """Test metric at the first validation with the best validation metric."""
        return max(self.points, key=lambda point: point.val).test

    @property
    def last(self) -> float:
        """Test metric at the last validation."""
        return self.points[-1].test

    @property
    def best_loss(self) -> float:
        """Least validation loss."""
        return min(point.loss for point in self.points)

    def first_below(self, loss: float) -> Point | None:
        """Return the first validation whose loss is not above a bound, ``None`` if there is none."""
        return next((point for point in self.points if point.loss <= loss), None)


class Classifier(NodeClassifier):
    """A NodeClassifier whose validation also measures the test nodes, from the same output."""

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        logits: Tensor = self(batch)
        for stage in STAGES:
            target, chosen = select_labelled(batch, stage, bool(self.multi_label))
            if stage == "val":
                loss = mean_loss(logits[chosen], target[chosen])
                self.log("val_loss", loss, batch_size=int(chosen.sum()), on_step=False, on_epoch=True)
            for key, metric in self.metrics.items():
                if key.startswith(f"{stage}_"):
                    assert isinstance(metric, Metric)
                    update_metric(metric, logits[chosen], target[chosen])
                    self.log(key, metric, batch_size=len(target), on_step=False, on_epoch=True)


def message_name(slot: Slot | None) -> str:
    """Return the name of a message for people."""
    return "all" if slot is None else f"{slot} {slot.role.value}"


class Watch:
    """Lets a schedule be shown the errors of every window, whether or not it looks at them, and keeps them by message."""

    def __init__(self, schedule: Schedule) -> None:
        self.drifts: dict[str, list[float]] = {}
        self.errors: dict[str, list[float]] = {}
        self._observe: Callable[[int, Observation], list[Decision]] = schedule.observe
        schedule.window = schedule.window or WINDOW
        schedule.observe = self.observe  # type: ignore[method-assign]

    def observe(self, step: int, observation: Observation) -> list[Decision]:
        """Note the errors of a window and let the schedule decide."""
        for slot, record in observation.slots.items():
            name = message_name(slot)
            self.drifts.setdefault(name, []).append(round(record.relative_drift, 4))
            self.errors.setdefault(name, []).append(float(f"{record.relative_error:.4g}"))
        return self._observe(step, observation)


class Recorder(L.Callback):
    """Keeps every validation, and what the strategy knows only until tear-down."""

    def __init__(self, metric: str) -> None:
        self.key = METRICS[metric]
        self.points: list[Point] = []
        self.watch: Watch | None = None
        self.waited = 1.0
        self.decisions: list[tuple[int, str, str, str]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        strategy = trainer.strategy
        if isinstance(strategy, HaloStrategy) and strategy.channel is not None:
            self.watch = Watch(strategy.channel.schedule)  # the strategy's own is only its pattern

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        values = trainer.callback_metrics
        loss, val, test = (float(values[name]) for name in ("val_loss", f"val_{self.key}", f"test_{self.key}"))
        self.points.append(Point(trainer.current_epoch + 1, loss, val, test, 0))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        strategy = trainer.strategy
        if not isinstance(strategy, HaloStrategy) or strategy.channel is None:
            return
        uses = sum(record.uses for record in strategy.channel.staleness.values())
        self.waited = sum(record.refreshes for record in strategy.channel.staleness.values()) / max(uses, 1)
        self.decisions = [(step, d.what, message_name(d.slot), d.why) for step, d in strategy.decisions]


def train(setting: Setting, root: str, scheme: str, seed: int) -> Run:
    """Train once; on several ranks each calls this. ``root`` keeps the partition of this graph and no other."""
    L.seed_everything(seed, verbose=False)
    recorder, monitor = Recorder(setting.metric), CommunicationMonitor(table=False)
    strategy = make_strategy(scheme, seed)
    trainer = make_trainer(
        strategy,
        1 if scheme == SINGLE else setting.parts,
        max_epochs=setting.epochs,
        check_val_every_n_epoch=setting.validate_every,
        callbacks=[recorder, monitor],
    )
    data = GraphDataModule(setting.graph, root=root, normalize_features=setting.normalize_features, progress=False)
    model = Classifier(
        setting.model,
        hidden_channels=setting.hidden,
        num_layers=setting.layers,
        dropout=setting.dropout,
        model_kwargs=setting.model_kwargs,
        metrics=[setting.metric],
        lr=setting.lr,
        weight_decay=setting.weight_decay,
    )
    start = time.perf_counter()
    trainer.fit(model, datamodule=data)
    seconds = time.perf_counter() - start
    return Run(
        points=with_bytes(recorder.points, [epoch.halo.sent_bytes for epoch in monitor.summary.epochs]),
        bytes_per_epoch=monitor.summary.bytes_per_epoch,
        seconds=round(seconds, 2),
        rows=rows_on_wire(root, setting.parts),
        messages=[
            Message(record.dense_bytes // (4 * record.rows), record.exchanges)
            for slot, record in monitor.summary.slots.items()
            if slot.role in HALO_ROLES and record.rows
        ],
        waited=recorder.waited,
        drifts=recorder.watch.drifts if recorder.watch else {},
        errors=recorder.watch.errors if recorder.watch else {},
        decisions=recorder.decisions,
    )


def with_bytes(points: list[Point], bytes_by_epoch: list[int]) -> list[Point]:
    """Return validations with the bytes sent until then."""
    return [point._replace(nbytes=sum(bytes_by_epoch[: point.epoch])) for point in points]


def rows_on_wire(root: str, parts: int) -> int:
    """Rows that all ranks send in one exchange, 0 if the graph was not cut."""
    folders = list(Path(root).glob(f"*-{parts}-parts-*"))
    return int(read_manifest(folders[0])["quality"]["rows_on_wire"]) if folders else 0


class Results:
    """Finished runs by setting, scheme and seed, in a file with one line for each.

    Args:
        path: The file; nothing is stored if ``None``. What it holds already is read and not measured again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[tuple[Setting, str, int], Run] = {}
        if path is not None:
            mend_events(path)
            for line in path.read_text().splitlines():
                record = json.loads(line)
                key = Setting(**record["setting"]), record["scheme"], record["seed"]
                self._runs[key] = _run_from_plain(record["run"])

    def get(self, setting: Setting, scheme: str, seed: int) -> Run | None:
        """Return a run if it is finished. The place of the graph does not matter."""
        return self._runs.get((replace(setting, graph=setting.name), scheme, seed))

    def add(self, setting: Setting, scheme: str, seed: int, run: Run) -> None:
        """Keep a finished run."""
        setting = replace(setting, graph=setting.name)
        self._runs[setting, scheme, seed] = run
        if self._path is not None:
            record = {"setting": asdict(setting), "scheme": scheme, "seed": seed, "run": asdict(run)}
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def _run_from_plain(plain: dict[str, Any]) -> Run:
    run = Run(**plain)
    run.points = [Point(*point) for point in plain["points"]]
    run.messages = [Message(*message) for message in plain["messages"]]
    return run
