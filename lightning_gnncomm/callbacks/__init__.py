"""Callbacks that watch training over several ranks."""

from lightning_gnncomm.callbacks.communication import CommunicationMonitor

__all__ = ["CommunicationMonitor"]
