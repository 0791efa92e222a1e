"""RunRecorder: its lines against what the ranks counted, what a stopped and a resumed run leave, and records that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_gnncomm import Asynchronous, CommunicationMonitor, GraphDataModule, HaloStrategy, RunRecorder
from lightning_gnncomm.callbacks.accounting import PARAMETERS
from lightning_gnncomm.callbacks.events import EVENTS, Epoch, Message, append_event, mend_events, read_run
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Decision
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.testing import RankPool
from tests.callbacks.test_staleness import Keeper, add, assert_same
from tests.strategies.project import Project, graph, make_trainer

EPOCHS = 7


class StopIn(pl.Callback):
    """Fails on every rank at the start of an epoch, as far as the record can tell: a kill."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            raise KeyError("stopped")


def fit(root: str, folder: str, epochs: int = EPOCHS, stop: int | None = None, resume: bool = False) -> dict[str, Any]:
    keeper, monitor = Keeper(), CommunicationMonitor(table=False)
    strategy = HaloStrategy(codec="one_bit", schedule=Asynchronous(refresh_every=3))
    recorder = RunRecorder(f"{root}/{folder}")
    callbacks = [keeper, monitor, recorder, ModelCheckpoint(f"{root}/{folder}", save_last=True)]
    if stop is not None:
        callbacks.append(StopIn(stop))
    trainer = make_trainer(
        strategy, 2, max_epochs=epochs, callbacks=callbacks, enable_checkpointing=True, check_val_every_n_epoch=2
    )
    path = f"{root}/{folder}/last.ckpt" if resume else None
    try:
        trainer.fit(Project(), GraphDataModule(graph(), root=f"{root}/parts"), ckpt_path=path)
    except KeyError:
        assert stop is not None
    return {"own": keeper.staleness, "traffic": strategy.traffic.records, "summary": monitor.summary}


@pytest.mark.processes
def test_lines_hold_what_the_ranks_counted(two_ranks: RankPool, tmp_path: Path) -> None:
    results = two_ranks.run(fit, str(tmp_path), "run")
    run = read_run(tmp_path / "run")
    assert run.has_ended
    assert run.settings == {
        "ranks": 2,
        "strategy": "HaloStrategy",
        "codec": "OneBitCodec()",
        "schedule": "Asynchronous(refresh_every=3, max_staleness=1, drift_bound=None)",
    }
    assert [(epoch.epoch, epoch.step) for epoch in run.epochs] == [(k, k + 1) for k in range(EPOCHS)]
    # Seven steps are no whole window, so no error was read; ages are those of the channels.
    ages = add([{slot: StalenessRecord(**vars(r)) for slot, r in epoch.staleness.items()} for epoch in run.epochs])
    expected = add([result["own"] for result in results])
    for records in (ages, expected):
        for record in records.values():
            record.error = record.norm = record.drift = record.drift_norm = 0.0
    assert_same(ages, expected)
    summary = results[0]["summary"]
    for epoch, seen in zip(run.epochs, summary.epochs, strict=True):
        halo = {slot: record for slot, record in epoch.traffic.items() if slot != PARAMETERS}
        assert sum(record.sent_bytes for record in halo.values()) == sum(epoch.sent_bytes) == seen.halo.sent_bytes
        assert epoch.traffic[PARAMETERS].sent_bytes == seen.parameters.sent_bytes
        for rank in range(2):
            assert 0 < epoch.wait_seconds[rank] < epoch.seconds[rank]
        # Validation is every second epoch; its old values are not repeated.
        assert ("val_loss" in epoch.metrics) is (epoch.epoch % 2 == 1)
        assert (epoch.validation_seconds[0] > 0) is (epoch.epoch % 2 == 1)
        assert "train_loss" in epoch.metrics


@pytest.mark.processes
def test_messages_of_the_first_and_last_epoch_are_in_order_and_add_up(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(fit, str(tmp_path), "run")
    run = read_run(tmp_path / "run")
    assert [bool(epoch.messages) for epoch in run.epochs] == [True, *[False] * (EPOCHS - 1)]
    for epoch, messages in ((run.epochs[0], run.epochs[0].messages), (run.epochs[-1], run.last_messages)):
        for rank in range(2):
            own = [message for message in messages if message.rank == rank]
            ends = [message.start + message.seconds for message in own]
            assert ends == sorted(ends)
            assert 0 < ends[-1] < epoch.seconds[rank]
            assert sum(message.seconds for message in own) == pytest.approx(epoch.wait_seconds[rank], abs=1e-5)
            sent = [(str(m.slot), m.slot.role) for m in own if not m.is_wait and m.slot.role is not Role.NORM]
            layers = ["net.convs.0.x", "net.convs.1.x"]
            assert sent == [
                *((layer, Role.FEATURE) for layer in layers),
                *((layer, Role.GRADIENT) for layer in reversed(layers)),
            ]


@pytest.mark.processes
def test_a_stopped_run_has_its_epochs_and_a_resumed_one_goes_on(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(fit, str(tmp_path), "run", EPOCHS, 4)
    stopped = read_run(tmp_path / "run")
    assert not stopped.has_ended
    assert [epoch.epoch for epoch in stopped.epochs] == [0, 1, 2, 3]
    with (tmp_path / "run" / EVENTS).open("a") as file:
        file.write('{"event": "epo')  # stopped while it was writing
    assert read_run(tmp_path / "run").is_cut
    two_ranks.run(fit, str(tmp_path), "run", EPOCHS, None, True)
    resumed = read_run(tmp_path / "run")
    assert (resumed.starts, resumed.has_ended, resumed.is_cut) == (2, True, False)
    assert [(epoch.epoch, epoch.step) for epoch in resumed.epochs] == [(k, k + 1) for k in range(EPOCHS)]
    assert resumed.epochs[4].messages  # the first after the resume


def cannot_write(root: str) -> str:
    trainer = make_trainer(HaloStrategy(), 2, max_epochs=1, callbacks=[RunRecorder(f"{root}/file")])
    try:
        trainer.fit(Project(), GraphDataModule(graph(), root=f"{root}/parts"))
    except OSError as error:
        return str(error)
    return "no error"


@pytest.mark.processes
def test_a_folder_that_cannot_be_written_ends_all_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for message in two_ranks.run(cannot_write, str(tmp_path)):
        assert "RunRecorder cannot write" in message
        assert "NotADirectoryError" in message


# --- in one process ---------------------------------------------------------------------------------------------------


class Small(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.layer(torch.ones(1, 1)).sum()
        self.log("train_loss", loss * float("nan") if self.current_epoch == 1 else loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_small(folder: Path, recorder: RunRecorder, **options: Any) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        callbacks=[recorder],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(Small(), torch.utils.data.DataLoader([0]))  # type: ignore[arg-type]


quiet = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@quiet
def test_one_process_has_a_record_too(tmp_path: Path) -> None:
    fit_small(tmp_path, RunRecorder(), logger=False)
    run = read_run(tmp_path)
    assert [len(epoch.seconds) for epoch in run.epochs] == [1, 1]
    assert run.epochs[0].traffic == run.epochs[0].staleness == {}
    assert run.epochs[1].metrics["train_loss"] != run.epochs[1].metrics["train_loss"]  # NaN


@quiet
def test_the_file_lies_in_the_loggers_folder(tmp_path: Path) -> None:
    fit_small(tmp_path, RunRecorder(), logger=CSVLogger(tmp_path / "logs", name="one", version="v"))
    assert len(read_run(tmp_path / "logs" / "one" / "v").epochs) == 2


@quiet
def test_a_fast_development_run_writes_nothing(tmp_path: Path) -> None:
    fit_small(tmp_path, RunRecorder(), fast_dev_run=True, logger=False)
    assert not (tmp_path / EVENTS).exists()


@quiet
def test_a_full_disk_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, event: str, values: Any) -> None:
        if event == "epoch":
            raise OSError("No space left on device")
        append_event(path, event, values)

    monkeypatch.setattr("lightning_gnncomm.callbacks.recorder.append_event", refuse)
    with pytest.warns(UserWarning, match="could not write .* No space left"):
        fit_small(tmp_path, RunRecorder(), logger=False)


# --- the file ---------------------------------------------------------------------------------------------------------


def an_epoch(number: int, loss: float = 1.0) -> Epoch:
    slot = Slot("convs.0", "x", role=Role.GRADIENT)
    return Epoch(
        epoch=number,
        step=number + 1,
        seconds=[0.5, 0.6],
        validation_seconds=[0.0, 0.0],
        wait_seconds=[0.1, 0.2],
        hidden_seconds=[0.0, 0.1],
        sent_bytes=[3, 4],
        metrics={"train_loss": loss},
        traffic={slot: TrafficRecord(1, 2, 7, 7, 64, 0.2, 0.1)},
        staleness={slot: StalenessRecord(2, 1, 1, 1, 0.5, float("inf"), 0.5, 2.0)},
        decisions=[(number, Decision("refresh", "drift", slot)), (number, Decision("interval", "2 -> 4"))],
        messages=[Message(1, slot, True, 0.25, 0.125)],
    )


def write(folder: Path, *events: tuple[str, dict[str, Any]]) -> Path:
    mend_events(folder / EVENTS)
    for event, values in events:
        append_event(folder / EVENTS, event, values)
    return folder / EVENTS


def test_an_epoch_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, ("start", {"ranks": 2}), ("epoch", an_epoch(0).to_plain()))
    run = read_run(tmp_path)
    assert run.epochs == [an_epoch(0)]
    assert run.settings == {"ranks": 2}


def test_epochs_that_are_run_again_replace_those_and_all_after(tmp_path: Path) -> None:
    write(tmp_path, *[("epoch", an_epoch(number).to_plain()) for number in range(5)], ("end", {"messages": []}))
    write(tmp_path, ("start", {}))
    assert [epoch.epoch for epoch in read_run(tmp_path).epochs] == [0, 1, 2, 3, 4]  # nothing was run again yet
    write(tmp_path, ("epoch", an_epoch(2, 9.0).to_plain()))
    run = read_run(tmp_path)
    assert [(epoch.epoch, epoch.metrics["train_loss"]) for epoch in run.epochs] == [(0, 1.0), (1, 1.0), (2, 9.0)]
    assert not run.has_ended


def test_no_folder_no_record_and_a_record_below_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"got '.*nowhere'\. There is no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"recorded by the callback RunRecorder: gnncomm fit"):
        read_run(tmp_path)
    write(tmp_path / "version_3")
    with pytest.raises(FileNotFoundError, match=r"There is one in .*version_3"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", '{"event": "start", "version": 1}\n', '{"event": "epoch", "epoch": 1'])
def test_a_record_without_an_epoch_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path).write_text(text)
    with pytest.raises(ValueError, match="at least one epoch"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not json", "JSONDecodeError"),
        ("[1, 2]", "TypeError"),
        ('{"something": "else"}', "KeyError: 'event'"),
        ('{"event": "epoch", "epoch": 1}', "KeyError"),
        ('{"event": "start", "version": 2}', "another release"),
        (json.dumps({"event": "epoch", **an_epoch(0).to_plain(), "traffic": [1]}), "TypeError"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path, ("epoch", an_epoch(0).to_plain()))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=rf"events.jsonl, line 2 \(.*({expected})"):
        read_run(tmp_path)
