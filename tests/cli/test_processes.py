"""The gnncomm command over two real processes: what it sends, and how it ends."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_gnncomm.graph.store import read_manifest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

TRAINER = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.enable_progress_bar=false"]


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command in a session of its own, all of which is ended at the latest with this block."""
    # A shell that runs tests in the background makes them deaf to Ctrl-C, which what we start would inherit.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GNNCOMM_CACHE": str(folder / "cache"),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_gnncomm", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        signal.signal(signal.SIGINT, previous)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(folder: Path, *arguments: str, timeout: float = 70) -> tuple[int, str]:
    """Run the command and return its status and output."""
    with started(folder, *arguments) as process:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output


@pytest.mark.slow
def test_partition_once_then_fit_counts_the_bytes_of_the_formula(tmp_path: Path) -> None:
    status, output = run(tmp_path, "partition", "karate", "--parts=2", "--out=parts")
    assert status == 0, output
    status, output = run(
        tmp_path,
        *("fit", *TRAINER, "--trainer.strategy=sylvie_sync", "--trainer.max_epochs=3", "--data.data=parts"),
        *("--model.hidden_channels=20", "--communication.per_slot=true"),
    )
    assert status == 0, output
    (metrics,) = tmp_path.rglob("metrics.csv")
    with metrics.open() as file:
        lines = [line for line in csv.DictReader(file) if line["comm/bytes"]]
    rows = read_manifest(tmp_path / "parts")["quality"]["rows_on_wire"]
    hidden, out = (rows * (4 + math.ceil(f / 8)) for f in (20, 4))
    for line in lines:
        assert float(line["comm/bytes"]) == 2 * (hidden + out)
        assert float(line["comm/model.convs.0.x/feature_bytes"]) == hidden
        assert float(line["comm/model.convs.1.x/gradient_bytes"]) == out
        assert float(line["comm/compression"]) == pytest.approx(4 * 24 / (4 + 3 + 4 + 1))
    assert len(lines) == 3
    assert "Sent by 2 ranks in 3 training epochs" in output
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    status, output = run(
        tmp_path, "test", "--trainer.accelerator=cpu", "--data.data=karate", f"--ckpt_path={checkpoint}"
    )
    assert status == 0, output
    assert "test_acc" in output


@pytest.mark.slow
def test_a_mistake_found_by_all_ranks_is_a_message_and_no_traceback(tmp_path: Path) -> None:
    status, output = run(tmp_path, "fit", *TRAINER, "--trainer.strategy=halo", "--data.data=npz:missing.npz")
    assert status != 0
    assert "gnncomm fit (rank 0): error: Expected a graph file" in output
    assert "Traceback" not in output


def test_a_rank_that_raises_ends_all_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import os, torch\n"
        "class Net(torch.nn.Module):\n"
        "    out_channels = 4\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(34, 4)\n"
        "    def forward(self, x, edge_index):\n"
        "        if self.training and os.environ['LOCAL_RANK'] == '1':\n"
        "            raise ValueError('only this rank fails')\n"
        "        return self.linear(x)\n"
    )
    (tmp_path / "failing.yaml").write_text(
        "model: {class_path: NodeClassifier, init_args: {model: {class_path: failing.Net}}}\n"
        "data: {class_path: GraphDataModule, init_args: {data: karate}}\n"
    )
    status, output = run(tmp_path, "fit", "--config=failing.yaml", *TRAINER, "--trainer.strategy=halo")
    assert status != 0
    assert "ValueError: only this rank fails" in output
    assert "failing.py" in output


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    arguments = ["fit", *TRAINER, "--trainer.strategy=halo", "--trainer.max_epochs=1000000", "--data.data=karate"]
    with started(tmp_path, *arguments, "--trainer.limit_val_batches=0", "--trainer.logger=false") as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "Total params" in line:  # all ranks have met, training begins
                break
        os.killpg(process.pid, signal.SIGINT)
        # The pipe closes when the last of the processes that hold it has gone.
        rest, _ = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in rest, "".join(printed) + rest
