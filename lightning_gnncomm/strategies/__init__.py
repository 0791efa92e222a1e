"""Lightning strategies: full-graph training over partitions."""

from lightning_gnncomm.strategies.halo import HaloStrategy
from lightning_gnncomm.strategies.registry import PRESETS, register_strategies

__all__ = ["PRESETS", "HaloStrategy", "register_strategies"]

register_strategies()
