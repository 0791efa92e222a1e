"""StalenessMonitor: what it logs over two real ranks, against the channels' own records; its table beside progress bars."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_gnncomm import (
    Asynchronous,
    CommunicationMonitor,
    GraphDataModule,
    HaloStrategy,
    IdentityCodec,
    RunRecorder,
    StalenessMonitor,
)
from lightning_gnncomm.callbacks import table
from lightning_gnncomm.callbacks.accounting import Meter, StalenessSummary
from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Synchronous
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.testing import RankPool, run_threads
from tests.strategies.project import Project, graph, make_trainer

SLOT = Slot("convs.0", "x")
EPOCHS = 7


class Keeper(pl.Callback):
    """Keeps what the channel of this rank counted."""

    def __init__(self) -> None:
        self.staleness: dict[Slot, StalenessRecord] = {}

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        channel: Any = trainer.strategy.channel  # type: ignore[attr-defined]
        self.staleness = {slot: StalenessRecord(**vars(record)) for slot, record in channel.staleness.items()}


def fit(root: str, schedule: Any, codec: str, every_n_steps: int | None = None, epochs: int = EPOCHS) -> dict[str, Any]:
    monitor, keeper = StalenessMonitor(every_n_steps=every_n_steps), Keeper()
    strategy = HaloStrategy(codec=codec, schedule=schedule)
    logger = CSVLogger(root, name="logs", version="0")
    trainer = make_trainer(strategy, 2, max_epochs=epochs, callbacks=[monitor, keeper], logger=logger)
    trainer.fit(Project(), GraphDataModule(graph(), root=f"{root}/parts"))
    return {
        "summary": monitor.summary,
        "own": keeper.staleness,
        "decisions": list(strategy.decisions),
        "file": logger.experiment.metrics_file_path,
    }


def logged(path: str) -> list[dict[str, float]]:
    with open(path) as file:
        lines = list(csv.DictReader(file))
    chosen = [{k: float(v) for k, v in line.items() if v and k.startswith("staleness/")} for line in lines]
    return [line for line in chosen if line]


def add(ranks: list[dict[Slot, StalenessRecord]]) -> dict[Slot, StalenessRecord]:
    total: dict[Slot, StalenessRecord] = {}
    for rank in ranks:
        for slot, record in rank.items():
            total.setdefault(slot, StalenessRecord()).__iadd__(record)
    return total


def assert_same(actual: dict[Slot, StalenessRecord], expected: dict[Slot, StalenessRecord]) -> None:
    assert actual.keys() == expected.keys()
    for slot, record in expected.items():
        assert vars(actual[slot]) == pytest.approx(vars(record), rel=1e-12)


@pytest.mark.processes
def test_ages_and_errors_are_those_that_the_channels_of_all_ranks_counted(two_ranks: RankPool, tmp_path: Path) -> None:
    results = two_ranks.run(fit, str(tmp_path), Asynchronous(refresh_every=3), "one_bit")
    for result in results:
        summary = result["summary"]
        assert_same(summary.slots, add([other["own"] for other in results]))
        # Steps 0, 2 and 5 wait; the four others use the rows of the step before. By slot: 2 ranks.
        assert {(r.uses, r.refreshes, r.age, r.oldest) for r in summary.slots.values()} == {(14, 6, 8, 1)}
        assert {slot.role for slot in summary.slots} == {Role.FEATURE, Role.GRADIENT}
        ages = [reading.total.age / reading.total.uses for reading in summary.readings[:EPOCHS]]
        assert ages == [0, 1, 0, 1, 1, 0, 1]
        assert [reading.step for reading in summary.readings[:EPOCHS]] == [*range(1, EPOCHS + 1)]
        assert summary.total.relative_error > 0
    lines = logged(results[0]["file"])
    assert [line["staleness/age"] for line in lines if "staleness/age" in line] == [0, 1, 0, 1, 1, 0, 1]
    assert [line["staleness/refreshes"] for line in lines if "staleness/age" in line] == [8, 0, 8, 0, 0, 8, 0]
    assert lines[1]["staleness/net.convs.1.x/gradient_age"] == 1
    assert lines[1]["staleness/max_age"] == 1
    assert lines[1]["staleness/interval"] == 3
    # Seven steps are no whole window, so the errors come at the end.
    assert [line["staleness/error"] for line in lines if "staleness/error" in line] == [
        pytest.approx(results[0]["summary"].total.relative_error)
    ]
    assert "staleness/net.convs.0.x/feature_drift" in lines[-1]


@pytest.mark.processes
def test_an_exact_run_has_neither_age_nor_error(two_ranks: RankPool, tmp_path: Path) -> None:
    summary = two_ranks.run(fit, str(tmp_path), "sync", "identity", None, 12)[0]["summary"]
    total = summary.total
    assert (total.age, total.oldest, total.error, total.drift) == (0, 0, 0.0, 0.0)
    assert total.uses == total.refreshes == 12 * 4 * 2
    assert total.norm > 0
    assert total.drift_norm > 0
    # Errors were read after ten steps, and at the end.
    assert [bool(reading.total.norm) for reading in summary.readings] == [k in (9, 12) for k in range(13)]


@pytest.mark.processes
def test_a_schedules_own_windows_are_left_to_it_and_its_decisions_shown(two_ranks: RankPool, tmp_path: Path) -> None:
    schedule = Asynchronous(drift_bound=0.01, window=3, patience=2)
    results = two_ranks.run(fit, str(tmp_path), schedule, "one_bit", 2, 10)
    for result in results:
        summary = result["summary"]
        assert summary.decisions == result["decisions"] != []
        assert summary.synchronous == {decision.slot for _, decision in summary.decisions}
        assert_same(summary.slots, add([other["own"] for other in results]))
        # Windows end before steps 3, 6 and 9; every second step is looked at.
        assert [reading.step for reading in summary.readings if reading.total.norm] == [4, 8, 10]
    table.print_table(table.build_staleness_table(results[0]["summary"], 2))


# --- in one process, on a channel that the test fills by hand ---------------------------------------------------------


class LateStrategy(SingleDeviceStrategy):
    """A single device with a channel that counts one use of rows of age 1 in each training step."""

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.decisions: list[Any] = []
        self.channel = SimpleNamespace(staleness={}, schedule=Synchronous(), close_window=lambda: None)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        record = self.channel.staleness.setdefault(SLOT, StalenessRecord())
        record += StalenessRecord(uses=1, age=1, oldest=1)
        return super().training_step(*args, **kwargs)


class Small(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        print("said by the module")
        return self.layer(torch.ones(1, 1)).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_small(tmp_path: Path, strategy: Any, *callbacks: pl.Callback, bar: bool = False) -> None:
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        callbacks=list(callbacks),
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=bar,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    loader = torch.utils.data.DataLoader([0])  # type: ignore[arg-type]
    trainer.fit(Small(), loader, loader)


quiet = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@quiet
def test_says_once_that_there_is_nothing_to_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = StalenessMonitor()
    with caplog.at_level("INFO"):
        for _ in range(2):
            fit_small(tmp_path, "auto", monitor)
    assert caplog.text.count("StalenessMonitor has nothing to show") == 1
    assert monitor.summary.readings == []


@quiet
@pytest.mark.parametrize("bar", [None, TQDMProgressBar, RichProgressBar])
@pytest.mark.parametrize("live", [True, False])
def test_the_live_table_lives_with_progress_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bar: Any, live: bool
) -> None:
    monkeypatch.setattr(table, "_PRINT_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    bars = [] if bar is None else [bar()]
    fit_small(tmp_path, LateStrategy(), StalenessMonitor(live=live, table=False), *bars, bar=bool(bars))
    printed = capsys.readouterr().out
    shown = printed.count("Rows used by 1 ranks up to step")
    # Without a bar what the module prints in between has the table drawn once more.
    assert (shown >= 3 if bar is None else shown == 3) if live else shown == 0
    assert printed.count("said by the module") == 3


@quiet
def test_without_a_terminal_nothing_is_shown_before_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_small(tmp_path, LateStrategy(), StalenessMonitor())
    printed = capsys.readouterr().out
    assert printed.count("Rows used by 1 ranks up to step 3") == 1
    assert printed.count("Rows used by") == 1


@quiet
def test_the_terminal_is_given_back_when_training_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monitor = StalenessMonitor()

    class Failing(pl.Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if trainer.current_epoch == 1:
                assert monitor._live_table is not None
                assert monitor._live_table._live is not None
                raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        fit_small(tmp_path, LateStrategy(), monitor, Failing())
    assert monitor._live_table is None


@quiet
def test_counting_steps_and_a_second_fit_starts_from_nothing(tmp_path: Path) -> None:
    monitor = StalenessMonitor(every_n_steps=2, table=False)
    for _ in range(2):
        fit_small(tmp_path, LateStrategy(), monitor)
        assert [(reading.step, reading.total.uses) for reading in monitor.summary.readings] == [(2, 2), (3, 1)]


def test_a_number_of_steps_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="every_n_steps to be at least 1 or None, got 0"):
        StalenessMonitor(every_n_steps=0)


def test_the_largest_age_is_no_difference() -> None:
    meter = Meter[StalenessRecord]()
    meter.read({SLOT: StalenessRecord(uses=1, age=3, oldest=3)})
    assert meter.read({SLOT: StalenessRecord(uses=2, age=4, oldest=3)})[SLOT] == StalenessRecord(
        uses=1, age=1, oldest=3
    )


def test_an_empty_summary_has_a_table() -> None:
    assert table.build_staleness_table(StalenessSummary(), 2).row_count == 1


@pytest.mark.parametrize("callback", [StalenessMonitor(), RunRecorder("runs"), CommunicationMonitor()])
def test_callbacks_can_be_sent_to_spawned_processes(callback: pl.Callback) -> None:
    assert pickle.loads(pickle.dumps(callback)).state_key == callback.state_key


def test_seconds_of_rows_in_flight_are_counted_when_validation_waits_for_them() -> None:
    """Once, and when a checkpoint does so too; they would be seen neither as hidden nor as waited for."""

    def look(wire: Wire) -> None:
        for wait in (Channel.drain, Channel.state_dict):
            channel = Channel(wire, IdentityCodec(), Asynchronous())
            peer, key = [wire.rank, 1 - wire.rank], torch.zeros(1, dtype=torch.long)
            for step in range(2):
                channel.carry([(SLOT, torch.ones(1, 2))], peer, peer, step, key)
            seconds = []
            for _ in range(3):
                total = channel.traffic.total()
                seconds.append(total.wait_seconds + total.hidden_seconds)
                wait(channel)
            assert seconds[0] < seconds[1] == seconds[2]

    run_threads(look, 2)
