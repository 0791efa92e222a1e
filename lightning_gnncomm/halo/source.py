"""Where the rows of remote nodes come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.slots import Slot

__all__ = ["HaloSource"]


class HaloSource(ABC):
    """Delivers the halo rows of a node tensor, differentiably."""

    @property
    def overlaps(self) -> bool:
        """Whether rows may be sent by a :class:`~lightning_gnncomm.halo.exchange.Message` and awaited later."""
        return False

    @abstractmethod
    def rows(
        self, blocks: Sequence[Tensor], plan: HaloPlan, slots: Sequence[Slot], step: int, exact: bool
    ) -> list[Tensor]:
        """Return the halo rows ``[H, *F_k]`` that belong to each of the own ``blocks`` of shape ``[n, *F_k]``."""
