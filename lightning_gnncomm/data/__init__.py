"""Getting a rank's part into a Lightning Trainer."""

from lightning_gnncomm.data.loader import PartLoader
from lightning_gnncomm.data.module import GraphDataModule

__all__ = ["GraphDataModule", "PartLoader"]
