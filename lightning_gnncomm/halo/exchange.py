"""The one autograd function of halo exchange, and the differentiable all-reduce."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.wire import Wire
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.slots import Role, Slot

__all__ = ["Message", "all_reduce_sum", "exchange_rows"]


class Message(NamedTuple):
    """Everything about a message but its rows."""

    channel: Channel
    plan: HaloPlan
    slot: Slot
    step: int
    exact: bool


class _Exchange(torch.autograd.Function):
    """``[n, F] -> [H, F]`` rows; the adjoint is the same carry with counts swapped, added onto the rows that were sent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, message: Message) -> Tensor:
        ctx.message, ctx.num_rows = message, x.size(0)
        plan = message.plan
        return message.channel.carry(
            x.index_select(0, plan.send_index),
            plan.send_counts,
            plan.recv_counts,
            message.slot,
            message.step,
            plan.send_key,
            message.exact,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        channel, plan, slot, step, exact = ctx.message
        role = Role.GRADIENT if slot.role is Role.FEATURE else slot.role
        rows = channel.carry(
            grad.contiguous(), plan.recv_counts, plan.send_counts, slot.as_role(role), step, plan.recv_key, exact
        )
        return grad.new_zeros(ctx.num_rows, grad.size(1)).index_add_(0, plan.send_index, rows), None


def exchange_rows(x: Tensor, message: Message) -> Tensor:
    """Return the ``[H, *F]`` halo rows of node rows ``x`` of shape ``[n, *F]``; gradients travel back to their owners."""
    flat = x.reshape(x.size(0), math.prod(x.shape[1:]))
    rows: Tensor = _Exchange.apply(flat, message)  # type: ignore[no-untyped-call]
    return rows.view(message.plan.num_halo, *x.shape[1:])


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return wire.all_reduce(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.wire.all_reduce(grad), None


def all_reduce_sum(x: Tensor, wire: Wire) -> Tensor:
    """Return the sum of ``x`` over all ranks; the adjoint sums the gradients over all ranks."""
    total: Tensor = _AllReduceSum.apply(x, wire)  # type: ignore[no-untyped-call]
    return total
