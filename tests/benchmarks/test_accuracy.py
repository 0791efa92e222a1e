"""The comparison of schemes: their names, the file of finished runs, and what is reported of them."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lightning_gnncomm import Asynchronous
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Observation, Synchronous, resolve_schedule
from lightning_gnncomm.slots import Slot

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("accuracy", "runs", "schemes", "shared")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the benchmark, imported as its script does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    return modules


def make_setting(bench, **changes):
    values = {
        "graph": "npz:/somewhere/cora.npz",
        "parts": 2,
        "model": "GCN",
        "hidden": 8,
        "layers": 2,
        "dropout": 0.0,
        "lr": 0.01,
        "weight_decay": 0.0,
        "epochs": 10,
        "validate_every": 5,
        "normalize_features": False,
        "metric": "accuracy",
        "heads": 4,
        "jk": None,
    }
    return bench["runs"].Setting(**values | changes)


def make_run(bench, losses, tests=(0.5, 0.6), **changes):
    runs = bench["runs"]
    points = [
        runs.Point(5 * k + 5, loss, test, test, 1000 * (k + 1))
        for k, (loss, test) in enumerate(zip(losses, tests, strict=True))
    ]
    values = {
        "points": points,
        "bytes_per_epoch": 200.0,
        "seconds": 1.0,
        "rows": 10,
        "messages": [runs.Message(8, 10)],
        "waited": 0.5,
        "drifts": {"conv.x feature": [0.1, 0.3]},
        "errors": {"conv.x feature": [0.2, 0.4]},
        "decisions": [(10, "refresh", "conv.x feature", "drift 0.3 above 0.2")],
    }
    return runs.Run(**values | changes)


@pytest.mark.parametrize(
    ("scheme", "codec", "refresh_every", "drift_bound"),
    [
        ("sylvie_async", "one_bit", None, None),
        ("pipegcn", "identity", None, None),
        ("delta_sign/async", "delta_sign", None, None),
        ("one_bit/async/2", "one_bit", None, 2.0),
        ("one_bit/10", "one_bit", 10, None),
        ("one_bit/adaptive/0.5", "one_bit", "adaptive", 0.5),
    ],
)
def test_a_scheme_stands_for_a_codec_and_a_schedule(bench, scheme, codec, refresh_every, drift_bound):
    arguments = bench["schemes"].arguments_of(scheme)
    schedule = resolve_schedule(arguments["schedule"])
    assert arguments["codec"] == codec
    assert isinstance(schedule, Asynchronous)
    assert (schedule.refresh_every, schedule.drift_bound) == (refresh_every, drift_bound)


def test_schemes_share_no_schedule(bench):
    one, other = (bench["schemes"].make_strategy("one_bit/adaptive/0.5", seed) for seed in (0, 1))
    assert one.schedule is not other.schedule
    assert isinstance(bench["schemes"].make_strategy("delta_sign/sync", 0).schedule, Synchronous)


@pytest.mark.parametrize(
    "scheme", ["nothing", "one_bit", "one_bit/often", "one_bit/0", "one_bit/async/-1", "one_bit/4/1/1"]
)
def test_what_is_no_scheme_is_refused(bench, scheme):
    with pytest.raises(ValueError, match=re.escape(repr(scheme))):
        bench["schemes"].arguments_of(scheme)


def test_finished_runs_are_read_again_wherever_the_graph_lies(bench, tmp_path):
    run, setting, file = make_run(bench, [1.0, 0.5]), make_setting(bench), tmp_path / "runs.jsonl"
    bench["runs"].Results(file).add(setting, "halo", 3, run)
    read = bench["runs"].Results(file)
    assert read.get(make_setting(bench, graph="npz:/elsewhere/cora.npz"), "halo", 3).points == run.points
    assert read.get(make_setting(bench, hidden=16), "halo", 3) is None
    assert read.get(setting, "halo", 4) is None
    assert read.get(setting, "sylvie_sync", 3) is None


def test_a_line_cut_off_by_a_kill_is_measured_again(bench, tmp_path):
    run, setting, file = make_run(bench, [1.0, 0.5]), make_setting(bench), tmp_path / "runs.jsonl"
    for seed in (0, 1):
        bench["runs"].Results(file).add(setting, "halo", seed, run)
    file.write_text(file.read_text()[:-20])
    read = bench["runs"].Results(file)
    assert read.get(setting, "halo", 0).points == run.points
    assert read.get(setting, "halo", 1) is None


def test_a_loss_is_reached_within_the_margin_of_the_same_seed(bench):
    runs = {
        "halo": {0: make_run(bench, [1.0, 0.5]), 1: make_run(bench, [1.0, 0.9])},
        "one_bit/async": {0: make_run(bench, [0.504, 0.4]), 1: make_run(bench, [1.0, 0.95])},
    }
    head, halo, coded = bench["accuracy"].convergence(runs)
    table = [dict(zip(head, row, strict=True)) for row in (halo, coded)]
    assert [row["reached by"] for row in table] == ["2 of 2", "1 of 2"]
    assert [row["epochs until"] for row in table] == ["10.0", "5.0"]
    assert [row["MB until"] for row in table] == ["0.002", "0.001"]


def test_differences_are_paired_by_seed(bench):
    runs = {
        "halo": {0: make_run(bench, [1.0, 1.0], (0.1, 0.2)), 1: make_run(bench, [1.0, 1.0], (0.1, 0.8))},
        "one_bit/async": {1: make_run(bench, [1.0, 1.0], (0.1, 0.9)), 0: make_run(bench, [1.0, 1.0], (0.1, 0.3))},
    }
    assert bench["accuracy"].differences(runs, "one_bit/async", "best") == pytest.approx([0.1, 0.1])
    rows = list(bench["accuracy"].measures(runs))
    assert rows[2][2:4] == ["0.6000 ± 0.3000", "+0.1000 ± 0.0000"]


def test_watching_changes_no_decision(bench):
    slot, schedules = Slot("conv", "x"), [Asynchronous("adaptive", drift_bound=0.5) for _ in range(2)]
    watch = bench["runs"].Watch(schedules[0])
    observation = Observation(loss=1.0, slots={slot: StalenessRecord(error=1.0, norm=2.0, drift=10.0, drift_norm=20.0)})
    watched, alone = (schedule.observe(10, observation) for schedule in schedules)
    assert watched == alone
    assert {decision.what for decision in watched} == {"refresh", "interval"}
    assert watch.drifts == {"conv.x feature": [0.6708]}
    assert watch.errors == {"conv.x feature": [0.7071]}


def test_errors_are_shown_by_quarter_beside_those_of_plain_one_bit(bench):
    plain = {seed: make_run(bench, [1.0, 1.0], errors={"m": [0.8] * 6 + [0.6, 0.4 + seed]}) for seed in (0, 1)}
    delta = {0: make_run(bench, [1.0, 1.0], errors={"m": [0.4, 0.2] * 3 + [0.1, 0.0]}), 1: make_run(bench, [1.0, 1.0])}
    _, first, second = bench["accuracy"].errors({"one_bit/async": plain, "delta_sign/async": delta})
    assert first[2:] == ["0.8000", "0.8000", "0.8000", "0.7500", ""]
    assert second[2:] == ["0.3000", "0.3000", "0.3000", "0.0500", "15.0x"]


def test_a_schedule_that_does_not_look_is_shown_windows_too(bench):
    schedule = Asynchronous()
    assert schedule.window is None
    bench["runs"].Watch(schedule)
    assert schedule.window == 10
    assert schedule.observe(10, Observation(loss=1.0)) == []


@pytest.mark.processes
@pytest.mark.slow
def test_the_script_resumes(tmp_path):
    def start(*more: str) -> str:
        command = [
            sys.executable,
            str(BENCHMARKS / "accuracy.py"),
            "digits",
            "--parts",
            "2",
            "--seeds",
            "1",
            "--epochs",
            "12",
        ]
        command += ["--hidden", "8", "--schemes", "halo", "one_bit/async", "--out", str(tmp_path / "runs.jsonl"), *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCHMARKS.parent)}
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment).stdout

    assert "with 2 runs left" in start("--max-minutes", "0")
    first = start()
    assert "[2/2] digits, GCN, seed 0, one_bit/async" in first
    run = json.loads((tmp_path / "runs.jsonl").read_text().splitlines()[1])["run"]
    assert all(run["drifts"].values()) and run["drifts"].keys() == run["errors"].keys() != set(), "nothing was watched"
    again = start()
    assert "[1/" not in again
    assert again.strip() == first[first.index("digits, 2 parts") :].strip()
