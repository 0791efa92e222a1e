"""CommunicationMonitor in one process, on counters that the test fills by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_gnncomm.callbacks import CommunicationMonitor
from lightning_gnncomm.callbacks.accounting import Meter, from_matrix, to_matrix
from lightning_gnncomm.callbacks.table import build_table, format_bytes, print_table
from lightning_gnncomm.comm.traffic import Traffic, TrafficRecord
from lightning_gnncomm.slots import Role, Slot

FORWARD = Slot("convs.0", "x")
RAW = Slot("convs.0", "x", role=Role.CONSTANT)
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class CountingStrategy(SingleDeviceStrategy):
    """A single device with the counters of a HaloStrategy."""

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.traffic = Traffic()
        self.gradient_traffic = TrafficRecord()


class Sender(L.LightningModule):
    """Sends 10 rows forward and back in every training step, raw rows once, and 7 exact rows in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def send(self, slot: Slot, rows: int, row_bytes: int) -> None:
        strategy: Any = self.trainer.strategy
        if isinstance(strategy, CountingStrategy):
            record = TrafficRecord(1, rows, rows * row_bytes, rows * row_bytes, rows * 128, 0.25, 0.125)
            strategy.traffic.add(slot, record)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        strategy: Any = self.trainer.strategy
        if self.current_epoch == 0:
            self.send(RAW, 3, 128)
        self.send(FORWARD, 10, 8)
        self.send(FORWARD.as_role(Role.GRADIENT), 10, 8)
        if isinstance(strategy, CountingStrategy):
            strategy.gradient_traffic += TrafficRecord(exchanges=1, sent_bytes=8, received_bytes=8, dense_bytes=8)
        return self.layer(torch.ones(1, 1)).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.send(FORWARD, 7, 128)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    tmp_path: Path, monitor: CommunicationMonitor, strategy: Any, logger: Any = False, epochs: int = 3
) -> L.Trainer:
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        callbacks=[monitor],
        logger=logger,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    loader = torch.utils.data.DataLoader([0])  # type: ignore[arg-type]
    trainer.fit(Sender(), loader, loader)
    return trainer


def test_counts_training_by_epoch_and_validation_apart(tmp_path: Path) -> None:
    monitor = CommunicationMonitor(table=False)
    fit(tmp_path, monitor, CountingStrategy())
    first, second, third = monitor.summary.epochs
    assert first.halo.sent_bytes == 160 + 3 * 128
    assert second.halo.sent_bytes == third.halo.sent_bytes == monitor.summary.bytes_per_epoch == 160
    assert second.roles[Role.FEATURE].rows == second.roles[Role.GRADIENT].rows == 10
    assert second.parameters.sent_bytes == 8
    assert monitor.summary.slots[FORWARD].sent_bytes == 240
    assert monitor.summary.evaluation.rows == 7 * 4  # three epochs and the sanity check
    assert monitor.summary.compression == pytest.approx((63 * 128) / (60 * 8 + 3 * 128))


def test_counters_of_others_are_left_alone_and_their_past_is_not_counted(tmp_path: Path) -> None:
    strategy, monitor = CountingStrategy(), CommunicationMonitor(table=False)
    strategy.traffic.add(FORWARD, TrafficRecord(1, 1000, 8000, 8000, 128000))
    fit(tmp_path, monitor, strategy, epochs=1)
    assert monitor.summary.slots[FORWARD].rows == 10
    assert strategy.traffic.records[FORWARD].rows == 1000 + 10 + 2 * 7


@pytest.mark.parametrize("per_slot", [False, True])
def test_logs_to_every_logger(tmp_path: Path, per_slot: bool) -> None:
    logger = CSVLogger(tmp_path)
    fit(tmp_path, CommunicationMonitor(per_slot=per_slot, table=False), CountingStrategy(), logger=logger)
    with open(logger.experiment.metrics_file_path) as file:
        lines = [line for line in csv.DictReader(file) if line["comm/bytes"]]
    rows = [{key: float(value) for key, value in line.items() if value} for line in lines]
    assert [row["comm/bytes"] for row in rows] == [544, 160, 160]
    assert rows[1]["comm/compression"] == 16
    assert rows[1]["comm/feature_bytes"] == rows[1]["comm/gradient_bytes"] == 80
    assert rows[0]["comm/constant_bytes"] == 384
    assert rows[1]["comm/norm_bytes"] == 0
    assert rows[1]["comm/wait_seconds"] == 0.5
    assert rows[1]["comm/hidden_seconds"] == 0.25
    assert rows[1]["comm/parameter_bytes"] == 8
    assert ("comm/convs.0.x/feature_bytes" in rows[1]) is per_slot


def test_says_once_that_a_strategy_sends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = CommunicationMonitor()
    with caplog.at_level("INFO"):
        for _ in range(2):
            fit(tmp_path, monitor, "auto")
    assert caplog.text.count("exchanges no halos") == 1
    assert monitor.summary.epochs == []


def test_prints_a_table_with_a_line_per_message_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, CommunicationMonitor(), CountingStrategy())
    printed = capsys.readouterr().out
    lines = {
        line.split("│")[1].strip() + "/" + line.split("│")[2].strip() for line in printed.splitlines() if "│" in line
    }
    assert {"convs.0.x/forward", "convs.0.x/backward", "convs.0.x/constant"} <= lines
    assert {"all halo rows/", "parameter gradients/all-reduce", "validation (exact)/forward", "total/"} <= lines
    assert "240 B" in printed
    assert "16.0x" in printed
    assert "Hidden (s)" in printed


def test_ranks_are_summed_except_for_what_happens_at_once() -> None:
    ranks = [TrafficRecord(2, 10, 80, 40, 1280, 0.5, 0.75), TrafficRecord(2, 5, 40, 80, 640, 1.5, 0.25)]
    matrices = torch.stack([to_matrix([record], TrafficRecord) for record in ranks])
    assert from_matrix(matrices, TrafficRecord) == [TrafficRecord(2, 15, 120, 120, 1920, 1.5, 0.75)]


def test_no_record_is_no_trouble() -> None:
    assert from_matrix(to_matrix([], TrafficRecord)[None], TrafficRecord) == []
    assert Meter[TrafficRecord]().read({}) == {}


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (28_400_000, "28.4 MB"), (3e12, "3 TB")]
)
def test_bytes_for_people(number: float, text: str) -> None:
    assert format_bytes(number) == text


def test_an_empty_summary_has_a_table() -> None:
    summary = CommunicationMonitor().summary
    assert build_table(summary, 2).row_count == 1
    print_table(build_table(summary, 2))
