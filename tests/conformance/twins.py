"""Runs that are wrong on purpose: a configuration that still agrees with one process then shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.halo.context import HaloContext
from lightning_gnncomm.halo.remote import RemoteSource
from lightning_gnncomm.slots import Role

__all__ = ["TWINS"]


class _ZeroRows(RemoteSource):
    """Halo rows without an exchange."""

    def rows(self, blocks: Sequence[Tensor], plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        return [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]


class _WrongDegrees(RemoteSource):
    """Halo rows as they are, but with ones for what is computed from degrees."""

    def rows(self, blocks: Sequence[Tensor], plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        received = super().rows(blocks, plan, slots, step, exact)
        return [
            rows.new_ones(rows.shape) if slot.argument == "degree" else rows
            for rows, slot in zip(received, slots, strict=True)
        ]


class _WithoutGathering(RemoteSource):
    """Halo rows as they are, but zeros for what is gathered from all nodes."""

    def rows(self, blocks: Sequence[Tensor], plan: Any, slots: Any, step: int, exact: bool) -> list[Tensor]:
        if any(slot.argument == "attention" for slot in slots):
            return [x.new_zeros(plan.num_halo, *x.shape[1:]) for x in blocks]
        return super().rows(blocks, plan, slots, step, exact)


def _without_gathering(context: HaloContext) -> None:
    context.source = _WithoutGathering(context.channel)


def _without_exchange(context: HaloContext) -> None:
    context.source = _ZeroRows(context.channel)


def _with_wrong_degrees(context: HaloContext) -> None:
    context.source = _WrongDegrees(context.channel)
    collect = context.collect

    def ones(x: Tensor, layer: str, argument: str) -> Tensor:
        sums = collect(x, layer, argument)
        return torch.ones_like(sums) if argument == "degree" else sums

    context.collect = ones  # type: ignore[method-assign]


def _with_local_statistics(context: HaloContext) -> None:
    context.all_reduce = lambda x, layer: x  # type: ignore[method-assign]


TWINS: dict[str, tuple[str, Callable[[HaloContext], None]]] = {
    "without exchange": (Role.FEATURE.value, _without_exchange),
    "with wrong degrees": ("degree", _with_wrong_degrees),
    "without gathering": ("attention", _without_gathering),
    "with local statistics": ("statistics", _with_local_statistics),
}
"""What is spoilt: for which role of messages it must show, and how."""
