"""The ``gnncomm`` command."""

from lightning_gnncomm.cli.main import main

__all__ = ["main"]
