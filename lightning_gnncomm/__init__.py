"""Full-graph training of PyTorch Geometric models over several devices, as PyTorch Lightning strategies."""

from lightning_gnncomm.callbacks import CommunicationMonitor, RunRecorder, StalenessMonitor, ThresholdGradients
from lightning_gnncomm.codecs import (
    CODECS,
    AdaptiveWidthCodec,
    Codec,
    DeltaSignCodec,
    IdentityCodec,
    KBitCodec,
    OneBitCodec,
    PerRoleCodec,
    ThresholdCodec,
)
from lightning_gnncomm.comm.schedule import Asynchronous, Synchronous
from lightning_gnncomm.comm.threshold import ThresholdState, threshold_hook
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
    "ThresholdCodec",
    "ThresholdGradients",
    "ThresholdState",
    "UnsupportedModuleError",
    "threshold_hook",
]

__version__ = "0.1.0.dev0"
