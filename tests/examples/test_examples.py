"""The examples run as they are, over two processes."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, *command: str, timeout: float) -> str:
    """Run a command in a session of its own and return what it printed; show that if it fails or is late."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GNNCOMM_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"not ended within {timeout} s:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


class TestDemoCheck:
    """What the demo calls a failure."""

    def results(self, **changes: float) -> dict[str, dict[str, float]]:
        results = {
            name: {"accuracy": 0.9, "seconds": 1.0, "bytes_per_epoch": number, "predicted": number}
            for name, number in (("auto", 0), ("halo", 1000), ("sylvie_sync", 100))
        }
        results["sylvie_sync"] |= changes
        return results

    def test_nothing_is_wrong(self, demo: ModuleType) -> None:
        assert demo.check(self.results()) == []

    @pytest.mark.parametrize("changes", [{"accuracy": 0.8}, {"accuracy": float("nan")}, {"bytes_per_epoch": 101}])
    def test_lost_accuracy_and_other_bytes_are(self, demo: ModuleType, changes: dict[str, float]) -> None:
        (problem,) = demo.check(self.results(**changes))
        assert problem.startswith("sylvie_sync")

    def test_the_formula(self, demo: ModuleType) -> None:
        assert demo.predicted_bytes("auto", 10) == 0
        assert demo.predicted_bytes("halo", 10) == 10 * 2 * 4 * (64 + 10)
        assert demo.predicted_bytes("sylvie_sync", 10) == 10 * 2 * (12 + 6)


def test_the_ported_project_differs_by_two_lines() -> None:
    lines = (EXAMPLES / "port_pyg_project.py").read_text().splitlines()
    assert sum("<- " in line for line in lines) == 2
    assert all("<- " in line for line in lines if "lightning_gnncomm" in line or "sylvie" in line)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_ported_project_learns_over_two_processes(tmp_path: Path) -> None:
    output = run(tmp_path, str(EXAMPLES / "port_pyg_project.py"), timeout=120)
    (accuracy,) = re.findall(r"test_acc\s+│\s+([\d.]+)", output)
    assert float(accuracy) > 0.9


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo(tmp_path: Path) -> None:
    output = run(tmp_path, str(EXAMPLES / "demo.py"), timeout=380)
    assert "two processes, one bit" in output


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_npz_example_takes_a_path_on_the_command_line(tmp_path: Path, shared_graph) -> None:
    arguments = [f"--config={EXAMPLES / 'npz.yaml'}", f"--data.data=npz:{shared_graph('cora')}"]
    arguments += ["--trainer.accelerator=cpu", "--trainer.max_epochs=5", "--trainer.enable_progress_bar=false"]
    output = run(tmp_path, "-m", "lightning_gnncomm", "fit", *arguments, timeout=120)
    assert "all halo rows" in output


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("arguments", [(), ("--devices", "3", "--strategy", "sylvie_sync")])
def test_the_heterogeneous_example_learns(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    output = run(tmp_path, str(EXAMPLES / "hetero.py"), *arguments, timeout=120)
    (accuracy,) = re.findall(r"test_acc\s+│\s+([\d.]+)", output)
    assert float(accuracy) > 0.7  # 0.25 by chance
