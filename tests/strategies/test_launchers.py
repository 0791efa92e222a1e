"""Every launcher Lightning has starts the ranks, and trouble on one rank ends all of them with its traceback shown."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.strategies.project import Project, loaders, make_trainer
from tests.strategies.project import graph as make_graph

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, "-m", "tests.strategies.fit_script"]
TIMEOUT = 90.0


class Started:
    """Processes a test has started; they are ended with it."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, command: list[str], **env: str) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1", **env}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children can be ended with it
        )
        self.processes.append(process)
        return process

    def group_is_gone(self, process: subprocess.Popen[str], within: float = 20.0) -> bool:
        """Whether no process of a group is left, waiting for the last to leave."""
        left = [other for other in psutil.process_iter() if _group_of(other.pid) == process.pid]
        return not psutil.wait_procs(left, timeout=within)[1]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def expected() -> dict[str, float]:
    trainer = make_trainer("auto")
    trainer.fit(Project(), **loaders(make_graph()))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def torchrun(arguments: list[str]) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*launcher, "-m", "tests.strategies.fit_script", *arguments]


def slurm(rank: int, nodes: int) -> dict[str, str]:
    per_node = 2 // nodes
    return {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "4242",
        "SLURM_NNODES": str(nodes),
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
    }


def check(processes: list[subprocess.Popen[str]], out: Path, expected: dict[str, Any]) -> None:
    for process in processes:
        output, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, output
    assert json.loads(out.read_text()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("strategy", ["halo", "halo_spawn", "halo_fork"])
def test_lightnings_own_launchers(start: Started, expected: dict[str, float], tmp_path: Path, strategy: str) -> None:
    process = start([*SCRIPT, "--strategy", strategy, "--out", str(tmp_path / "out")])
    check([process], tmp_path / "out", expected)


def test_torchrun(start: Started, expected: dict[str, float], tmp_path: Path) -> None:
    check([start(torchrun(["--out", str(tmp_path / "out")]))], tmp_path / "out", expected)


def test_two_nodes_by_environment_variables(start: Started, expected: dict[str, float], tmp_path: Path) -> None:
    port = free_port()
    command = [*SCRIPT, "--devices", "1", "--num-nodes", "2", "--out", str(tmp_path / "out")]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [start(command, NODE_RANK=str(rank), LOCAL_RANK="0", **variables) for rank in range(2)]
    check(processes, tmp_path / "out", expected)


@pytest.mark.parametrize("nodes", [1, 2])
def test_slurm_variables(start: Started, expected: dict[str, float], tmp_path: Path, nodes: int) -> None:
    port = free_port()
    command = [*SCRIPT, "--devices", str(2 // nodes), "--num-nodes", str(nodes), "--out", str(tmp_path / "out")]
    processes = [start(command, MASTER_PORT=port, **slurm(rank, nodes)) for rank in range(2)]
    check(processes, tmp_path / "out", expected)


@pytest.mark.parametrize("strategy", ["halo", "halo_spawn", "torchrun"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_ends_all_ranks_with_its_traceback_shown(start: Started, strategy: str, rank: int) -> None:
    arguments = ["--trouble", "raise", "--trouble-rank", str(rank)]
    command = torchrun(arguments) if strategy == "torchrun" else [*SCRIPT, *arguments, "--strategy", strategy]
    process = start(command)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "KeyError: 'trouble in the third step'" in output
    assert start.group_is_gone(process), output


def test_a_rank_that_dies_ends_the_others_with_a_hint(start: Started) -> None:
    process = start([*SCRIPT, "--trouble", "die"])
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "Rank 0 lost the connection to another rank" in output
    assert start.group_is_gone(process), output


def test_interrupting_ends_all_ranks(start: Started) -> None:
    process = start([*SCRIPT, "--trouble", "interrupt", "--trouble-rank", "0"])
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in output
    assert start.group_is_gone(process), output


@pytest.mark.parametrize("rank", [0, 1])
def test_terminating_a_rank_ends_all_ranks(start: Started, tmp_path: Path, rank: int) -> None:
    out = tmp_path / "out"
    process = start([*SCRIPT, "--trouble", "terminate", "--trouble-rank", str(rank), "--out", str(out)])
    output, _ = process.communicate(timeout=TIMEOUT)
    assert start.group_is_gone(process), output
    assert not out.exists()


@pytest.mark.parametrize("name", ["halo", "sylvie_sync_spawn"])
def test_a_trainer_of_the_other_class_tree_is_told_so(start: Started, name: str) -> None:
    pytest.importorskip("pytorch_lightning")
    process = start([*SCRIPT, "--other-tree", "--strategy", name])
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "import lightning.pytorch as pl" in output, output


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_hundred_fits_in_a_row_end_by_themselves(start: Started, tmp_path: Path) -> None:
    for number in range(100):
        process = start([*SCRIPT, "--out", str(tmp_path / f"out{number}")])
        output, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, output
        assert start.group_is_gone(process), output


def test_a_killed_run_resumes_with_the_same_bits(start: Started, tmp_path: Path) -> None:
    """With SIGKILL nobody can write anything any more; the checkpoint of the step before is whole."""
    states = {}
    for name, trouble in (("whole", []), ("killed", ["--trouble", "kill", "--trouble-rank", "1"]), ("killed", [])):
        out = tmp_path / f"{name}.json"
        command = [
            *SCRIPT,
            "--strategy",
            "sylvie_async",
            "--checkpoints",
            str(tmp_path / name),
            "--out",
            str(out),
            *trouble,
        ]
        process = start(command)
        output, _ = process.communicate(timeout=TIMEOUT)
        assert (process.returncode == 0) == (not trouble), output
        assert start.group_is_gone(process)
        assert out.exists() == (not trouble)
        if not trouble:
            states[name] = torch.load(tmp_path / name / "state.pt", weights_only=True), json.loads(out.read_text())
    assert states["whole"][1] == states["killed"][1]
    for key, value in states["whole"][0].items():
        assert torch.equal(states["killed"][0][key], value), key


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_twenty_kills_at_random_points_leave_the_same_bits(start: Started, tmp_path: Path) -> None:
    """All ranks are killed wherever they are: sending, in backward, or while a checkpoint is written."""
    choose, kills = random.Random(7), 20

    def command(name: str) -> list[str]:
        folder = str(tmp_path / name)
        more = ["--epochs", "120", "--tell", "--checkpoints", folder, "--out", f"{folder}.json"]
        return [*SCRIPT, "--strategy", "sylvie_async", *more]

    whole = start(command("whole"))
    output, _ = whole.communicate(timeout=TIMEOUT)
    assert whole.returncode == 0, output
    for _ in range(kills):
        process = start(command("killed"))
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(choose.randint(20, 120))]
        assert all(lines), "".join(lines)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT)
    process = start(command("killed"))
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, output
    assert json.loads((tmp_path / "killed.json").read_text()) == json.loads((tmp_path / "whole.json").read_text())
    first, second = (torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("whole", "killed"))
    for key, value in first.items():
        assert torch.equal(second[key], value), key
