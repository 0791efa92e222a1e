"""Where the rows of remote nodes come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.slots import Slot

__all__ = ["HaloSource"]


class HaloSource(ABC):
    """Delivers the halo rows of a node tensor, differentiably."""

    @abstractmethod
    def rows(self, x: Tensor, plan: HaloPlan, slot: Slot, step: int, exact: bool) -> Tensor:
        """Return the halo rows ``[H, *F]`` that belong to the own rows ``x`` of shape ``[n, *F]``."""
