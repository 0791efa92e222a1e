"""Callbacks that watch training over several ranks."""

from lightning_gnncomm.callbacks.communication import CommunicationMonitor
from lightning_gnncomm.callbacks.recorder import RunRecorder
from lightning_gnncomm.callbacks.staleness import StalenessMonitor
from lightning_gnncomm.callbacks.threshold import ThresholdGradients

__all__ = ["CommunicationMonitor", "RunRecorder", "StalenessMonitor", "ThresholdGradients"]
