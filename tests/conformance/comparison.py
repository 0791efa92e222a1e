"""How far the passes of several ranks are from those of one process."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tests.conformance.suite import Pass

__all__ = ["TOLERANCE", "Difference", "compare"]

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """The largest difference, relative to the largest value, and where it was."""

    error: float
    where: str


def compare(expected: Pass, actual: list[Pass]) -> Difference:
    """Return the largest difference of any tensor on any rank; a tensor of another shape differs infinitely."""
    worst = Difference(0.0, "")
    scale = max((t.abs().max().item() for k, t in expected.tensors.items() if "gradient" in k and t.numel()), default=0)
    for rank, view in enumerate(actual):
        for name, ours in view.tensors.items():
            error = _error(ours, expected.tensors.get(name), scale if "gradient" in name else 0.0)
            if not error <= worst.error:
                worst = Difference(error, f"{name} on rank {rank}")
    return worst


def _error(ours: Tensor, theirs: Tensor | None, scale: float) -> float:
    if theirs is None or ours.shape != theirs.shape:
        return float("inf")
    if theirs.numel() == 0:
        return 0.0
    difference = (ours.double() - theirs.double()).abs().max().item()
    size = max(theirs.double().abs().max().item(), scale, 1e-30)
    return difference / size if difference == difference else float("inf")
