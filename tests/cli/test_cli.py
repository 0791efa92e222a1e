"""The gnncomm command in this process: its help, its defaults, what it trains and how it fails."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from lightning_gnncomm.cli import main
from lightning_gnncomm.cli.failures import is_user_error, short_errors
from lightning_gnncomm.cli.main import HELP
from lightning_gnncomm.cli.training import TRAINING_COMMANDS
from lightning_gnncomm.models import NodeClassifier

Run = Callable[..., tuple[int, str, str]]

QUIET = [
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
pytestmark = pytest.mark.filterwarnings("ignore:.*tensorboardX", "ignore:The dirpath has changed from")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty folder and return its status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("GNNCOMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # LightningCLI uses what jsonargparse moved

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gnncomm", *arguments])
        try:
            main()
            status = 0
        except SystemExit as leave:
            status = int(leave.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


class TestHelp:
    def test_lists_every_command_with_an_example(self, run: Run) -> None:
        status, out, _ = run("--help")
        assert status == 0
        for command in [*TRAINING_COMMANDS, "partition", "report"]:
            assert f"\n  {command} " in out
        assert "\nexamples:\n" in out

    def test_no_command_is_an_error_with_help(self, run: Run) -> None:
        assert run()[0] == 2
        assert run()[2] == HELP

    def test_an_unknown_command_is_an_error_that_lists_all(self, run: Run) -> None:
        status, _, err = run("prune")
        assert status == 2
        assert "'prune'; expected one of fit, validate, test, predict, partition, report" in err

    @pytest.mark.parametrize("command", ["fit", "partition"])
    def test_of_a_command(self, run: Run, command: str) -> None:
        status, out, _ = run(command, "--help")
        assert status == 0
        assert "usage:" in out

    def test_python_dash_m(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["gnncomm", "--help"])
        with pytest.raises(SystemExit) as leave:
            runpy.run_module("lightning_gnncomm", run_name="__main__")
        assert leave.value.code == 0
        assert capsys.readouterr().out == HELP


class TestFit:
    def test_then_test_then_predict_with_nothing_but_the_checkpoint(self, run: Run, tmp_path: Path) -> None:
        fit = ["--trainer.max_epochs=3", "--model.model=GraphSAGE", "--model.hidden_channels=8", "--data.data=karate"]
        assert run("fit", *QUIET, *fit)[0] == 0
        (checkpoint,) = tmp_path.rglob("*.ckpt")
        assert NodeClassifier.load_from_checkpoint(checkpoint).hparams["hidden_channels"] == 8
        status, out, _ = run("test", *QUIET, "--data.data=karate", f"--ckpt_path={checkpoint}")
        assert status == 0
        assert "test_acc" in out
        status, out, _ = run("predict", *QUIET, "--data.data=karate", f"--ckpt_path={checkpoint}", "--output=out/p.pt")
        assert status == 0
        assert "Wrote out/p.pt" in out
        assert torch.load(tmp_path / "out" / "p.pt").shape == (34, 4)

    def test_needs_no_option(self, run: Run, tmp_path: Path) -> None:
        assert run("fit", *QUIET, "--trainer.max_epochs=1")[0] == 0
        (config,) = tmp_path.rglob("config.yaml")
        settings = yaml.safe_load(config.read_text())
        assert settings["model"]["class_path"].endswith(".NodeClassifier")
        assert settings["data"]["init_args"]["data"] == "digits"
        assert settings["seed_everything"] == 0

    def test_a_module_and_a_network_of_the_users_own_beside_the_command(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "own_net.py").write_text(
            "import torch\n"
            "from torch_geometric.nn import GCNConv\n"
            "class Net(torch.nn.Module):\n"
            "    def __init__(self, width: int = 4):\n"
            "        super().__init__()\n"
            "        self.conv = GCNConv(34, width)\n"
            "    def forward(self, x, edge_index):\n"
            "        return self.conv(x, edge_index)\n"
        )
        (tmp_path / "own.yaml").write_text(
            "model:\n  class_path: NodeClassifier\n  init_args:\n    model: {class_path: own_net.Net}\n"
            "    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\n"
            "data: {class_path: GraphDataModule, init_args: {data: karate}}\n"
        )
        assert run("fit", "--config=own.yaml", *QUIET, "--trainer.max_epochs=1")[0] == 0
        (checkpoint,) = tmp_path.rglob("*.ckpt")
        assert NodeClassifier.load_from_checkpoint(checkpoint).model is not None
        status, _, _ = run("test", *QUIET, "--data.data=karate", f"--ckpt_path={checkpoint}")
        assert status == 0

    def test_callbacks_by_name_record_a_run_that_has_a_report(self, run: Run, tmp_path: Path) -> None:
        callbacks = ["--trainer.callbacks+=RunRecorder", "--trainer.callbacks+=StalenessMonitor"]
        assert run("fit", *QUIET, *callbacks, "--trainer.max_epochs=2", "--data.data=karate")[0] == 0
        (record,) = tmp_path.rglob("events.jsonl")
        status, out, err = run("report", str(record.parents[1]))
        assert status == 0, err
        assert "Wrote report.html" in out
        assert "val_acc" in (tmp_path / "report.html").read_text()

    @pytest.mark.parametrize("name", ["digits", "npz"])
    def test_the_examples_are_valid(self, run: Run, name: str) -> None:
        example = Path(__file__).parents[2] / "examples" / f"{name}.yaml"
        status, out, err = run("fit", f"--config={example}", "--trainer.devices=1", "--print_config")
        assert status == 0, err
        assert "NodeClassifier" in out


class TestPartition:
    def test_writes_parts_once(self, run: Run, tmp_path: Path) -> None:
        status, out, _ = run("partition", "karate", "--parts=2", "--out=parts")
        assert status == 0
        assert "halo rows" in out
        assert "--data.data parts" in out
        status, out, _ = run("partition", "karate", "--parts=2", "--out=parts")
        assert status == 0
        assert "already cut" in out

    def test_balances_several_amounts(self, run: Run) -> None:
        assert run("partition", "karate", "--parts=2", "--out=parts", "--balance", "nodes", "train")[0] == 0

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["karata", "--parts=2", "--out=p"], "karate"),
            (["npz:missing.npz", "--parts=2", "--out=p"], "missing.npz"),
            (["karate", "--parts=0", "--out=p"], "parts"),
            (["karate", "--parts=100", "--out=p"], "34"),
            (["karate", "--out=p"], "parts"),
            (["karate", "--parts=2", "--out=p", "--method=kmeans"], "method"),
            (["karate", "--parts=2", "--out=."], "Choose another folder"),
        ],
    )
    def test_a_mistake_is_one_message_and_status_2(
        self, run: Run, tmp_path: Path, arguments: list[str], expected: str
    ) -> None:
        (tmp_path / "something").write_text("else")
        status, _, err = run("partition", *arguments)
        assert status == 2
        assert expected in err
        assert "Traceback" not in err

    def test_a_folder_with_other_settings_is_kept(self, run: Run) -> None:
        assert run("partition", "karate", "--parts=2", "--out=parts")[0] == 0
        status, _, err = run("partition", "karate", "--parts=3", "--out=parts")
        assert status == 2
        assert "num_parts is 2 there, 3 here" in err


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["--model.model=GNC"], "GraphSAGE"),
            (["--data.data=npz:missing.npz"], "missing.npz"),
            (["--data.data=digit"], "Did you mean 'digits'"),
            (["--trainer.strategy=halow"], "halow"),
            (["--trainer.max_epochs=many"], "max_epochs"),
            (["--config=missing.yaml"], "missing.yaml"),
        ],
    )
    def test_one_message_and_status_2(self, run: Run, arguments: list[str], expected: str) -> None:
        status, _, err = run("fit", *QUIET, *arguments)
        assert status == 2
        assert expected in err
        assert "Traceback" not in err

    def test_the_traceback_can_be_asked_for(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GNNCOMM_DEBUG", "1")
        with pytest.raises(ValueError, match="GNC"):
            run("fit", *QUIET, "--model.model=GNC")

    def test_errors_from_elsewhere_keep_their_traceback(self) -> None:
        with pytest.raises(ValueError, match="invalid literal"), short_errors("gnncomm fit"):
            int("not ours")

    def test_ctrl_c_has_the_usual_status(self) -> None:
        with pytest.raises(SystemExit) as leave, short_errors("gnncomm fit"):
            raise KeyboardInterrupt
        assert leave.value.code == 130

    def test_a_missing_file_is_the_users(self) -> None:
        assert is_user_error(FileNotFoundError("x"))
        assert not is_user_error(ValueError("never raised"))
