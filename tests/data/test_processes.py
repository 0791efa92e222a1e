"""The data module under real ranks: Lightning starts them from a script, as a user's would be."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from lightning_gnncomm.data import GraphDataModule
from lightning_gnncomm.graph import load_graph


class Exchanging(DDPStrategy):
    exchanges_halos = True


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 3)

    def training_step(self, batch):
        (out / f"ids-{self.global_rank}").write_text(" ".join(map(str, batch.n_id.tolist())))
        return self.layer(batch.x).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(module):
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy=Exchanging(process_group_backend="gloo"), max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=out,
    )
    try:
        trainer.fit(Model(), module)
    except ValueError as error:
        (out / f"error-{trainer.global_rank}").write_text(str(error))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    source = load_graph("sbm:nodes=90,blocks=3,p_in=0.2,p_out=0.05")
    fit(GraphDataModule(source, root=out / "cache", progress=False))
    (part,) = (out / "cache").glob("*/part-00001.safetensors")
    damaged = out / f"damaged-{os.getpid()}"
    damaged.write_bytes(b"short")
    damaged.replace(part)  # and not written to, since the other rank may still have it mapped
    fit(GraphDataModule(source, root=out / "cache", progress=False))
"""


@pytest.mark.processes
def test_two_processes_get_their_parts_and_both_hear_of_a_damaged_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    result = subprocess.run(
        command, check=False, timeout=100, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ids = [[int(node) for node in (tmp_path / f"ids-{rank}").read_text().split()] for rank in range(2)]
    assert sorted(ids[0] + ids[1]) == list(range(90)) and min(map(len, ids)) > 30
    errors = [(tmp_path / f"error-{rank}").read_text() for rank in range(2)]
    assert errors[0] == errors[1] and "part-00001.safetensors, got 5: the file is damaged" in errors[0]
