"""How far the rows in use are from the true ones, measured on a few rows at their sender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

__all__ = ["Probe", "StalenessRecord"]

_NUM_ROWS = 16


@dataclass
class StalenessRecord:
    """What became of a slot's messages on this rank: ages, and errors of the probed rows.

    Args:
        uses: Messages whose rows were used.
        refreshes: Of these, those that were waited for in their own step.
        age: Sum of ages in steps.
        oldest: Largest age.
        error: Squared norm of what the receivers used less the true rows, summed over steps.
        norm: Squared norm of the true rows, likewise.
        drift: Squared norm of the same errors added up over a window of steps first, row by row.
        drift_norm: Squared norm of the true rows added up likewise.
    """

    uses: int = 0
    refreshes: int = 0
    age: int = 0
    oldest: int = 0
    error: float = 0.0
    norm: float = 0.0
    drift: float = 0.0
    drift_norm: float = 0.0

    def __iadd__(self, other: StalenessRecord) -> Self:
        for name in vars(other):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name == "oldest" else mine + theirs)
        return self

    @property
    def relative_error(self) -> float:
        """Error of single steps relative to the rows: staleness, rounding and dropout together."""
        return float((self.error / self.norm) ** 0.5) if self.norm else 0.0

    @property
    def relative_drift(self) -> float:
        """Error that does not average out over a window, relative to the rows.

        Errors of several steps that have nothing to do with each other add up to a squared norm of just the sum of theirs, which
        is taken off: what is left is what they have in common.
        """
        common = max(self.drift - self.error, 0.0)
        # Written so that NaN stays NaN.
        return float((common / self.drift_norm) ** 0.5) if self.drift_norm != 0 else 0.0


class Probe:
    """A few rows of a message: as they are, and as their receivers use them.

    Errors of single steps hold the noise of rounding and of dropout, which averages out over neighbours and steps. What does not is
    seen in each row's mean over a window of steps.
    """

    def __init__(self) -> None:
        self._delivered: dict[int, Tensor] = {}
        self._true: dict[int, Tensor] = {}
        self._used: dict[int, Tensor] = {}
        self._errors: dict[int, Tensor] = {}

    @staticmethod
    def index(num_rows: int, device: Any) -> Tensor:
        """Return the positions of the probed rows: a few, evenly spaced, the same at every step."""
        number = min(num_rows, _NUM_ROWS)
        return torch.arange(number, device=device) * (num_rows // max(number, 1))

    def add(self, block: int, true: Tensor, delivered: Tensor, fresh: bool) -> None:
        """Take the probed rows of a block at a step.

        Args:
            block: Number of the block in its message.
            true: The rows as they are, ``[K, F]``.
            delivered: The same rows as the receivers will have them from this step's message.
            fresh: Whether the receivers use this message now, or the one before.
        """
        true, delivered = true.float(), delivered.float()
        used = delivered if fresh else self._delivered.get(block, delivered)
        self._delivered[block] = delivered
        # Sums stay on their device until a window closes: reading them would wait for it.
        for sums, value in (
            (self._true, true),
            (self._used, used),
            (self._errors, torch.stack([(true - used).square().sum(), true.square().sum()])),
        ):
            sums[block] = sums[block] + value if block in sums else value.clone()

    def close_window(self) -> dict[int, StalenessRecord]:
        """Return the errors of each block over the steps since the last call."""
        records = {}
        for block, true in self._true.items():
            drift = torch.stack([(true - self._used[block]).square().sum(), true.square().sum()])
            error, norm, drifted, drift_norm = torch.cat([self._errors[block], drift]).tolist()
            records[block] = StalenessRecord(error=error, norm=norm, drift=drifted, drift_norm=drift_norm)
        self._true, self._used, self._errors = {}, {}, {}
        return records

    def state(self) -> dict[str, dict[int, Tensor]]:
        """Return the probe as plain data."""
        return {name: dict(sums) for name, sums in vars(self).items()}

    def restore(self, state: Mapping[str, Mapping[int, Tensor]], device: Any) -> None:
        """Continue from a :meth:`state`."""
        for name, sums in state.items():
            setattr(self, name, {block: rows.to(device) for block, rows in sums.items()})
