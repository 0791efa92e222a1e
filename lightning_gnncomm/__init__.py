"""Full-graph training of PyTorch Geometric models over several devices, as PyTorch Lightning strategies."""

from lightning_gnncomm.callbacks import CommunicationMonitor, RunRecorder, StalenessMonitor
from lightning_gnncomm.codecs import (
    CODECS,
    AdaptiveWidthCodec,
    Codec,
    DeltaSignCodec,
    IdentityCodec,
    KBitCodec,
    OneBitCodec,
    PerRoleCodec,
)
from lightning_gnncomm.comm.schedule import Asynchronous, Synchronous
from lightning_gnncomm.data import GraphDataModule
from lightning_gnncomm.halo.attach import UnsupportedModuleError
from lightning_gnncomm.models import NodeClassifier
from lightning_gnncomm.strategies import HaloStrategy

__all__ = [
    "CODECS",
    "AdaptiveWidthCodec",
    "Asynchronous",
    "Codec",
    "CommunicationMonitor",
    "DeltaSignCodec",
    "GraphDataModule",
    "HaloStrategy",
    "IdentityCodec",
    "KBitCodec",
    "NodeClassifier",
    "OneBitCodec",
    "PerRoleCodec",
    "RunRecorder",
    "StalenessMonitor",
    "Synchronous",
    "UnsupportedModuleError",
]

__version__ = "0.1.0.dev0"
