"""The one autograd function of halo exchange, and the differentiable all-reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_gnncomm.comm.channel import Channel, Delivery
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.slots import Role, Slot

__all__ = ["Message", "all_reduce_sum", "collect_rows", "exchange_rows", "send_gradients", "send_rows"]


class Message(NamedTuple):
    """Everything about a message but its rows: the ways it takes, and the name of each block of rows in it.

    ``received`` are its rows if they are at hand already; then nothing but their gradients will travel.
    """

    channel: Channel
    plan: HaloPlan
    slots: tuple[Slot, ...]
    step: int
    exact: bool
    received: tuple[Tensor, ...] | None = None


class _Exchange(torch.autograd.Function):
    """``[n, F_k] -> [H, F_k]`` rows; the adjoint is the same carry with counts swapped, added onto the rows that were sent."""

    @staticmethod
    def forward(ctx: Any, message: Message, *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.message, ctx.num_rows = message, blocks[0].size(0)
        if message.received is not None:
            pairs = zip(message.received, blocks, strict=True)
            return tuple(rows.detach().view(rows.size(0), x.size(1)) for rows, x in pairs)
        return tuple(send_rows(message, blocks).wait())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        message: Message = ctx.message
        plan = message.plan
        needed = [k for k in range(len(grads)) if ctx.needs_input_grad[k + 1]]
        received = send_gradients(message, {k: grads[k] for k in needed}).wait()
        results: list[Tensor | None] = [None] * (len(grads) + 1)
        for k, rows in zip(needed, received, strict=True):
            results[k + 1] = rows.new_zeros(ctx.num_rows, rows.size(1)).index_add_(0, plan.send_index, rows)
        return tuple(results)


def send_rows(message: Message, blocks: Sequence[Tensor]) -> Delivery:
    """Send own rows ``[n, F_k]`` to those who read them; what is returned waits for the halo rows ``[H, F_k]``."""
    channel, plan, slots, step, exact, _ = message
    sent = [(slot, x.index_select(0, plan.send_index)) for slot, x in zip(slots, blocks, strict=True)]
    return channel.start(sent, plan.send_counts, plan.recv_counts, step, plan.send_key, exact)


def send_gradients(message: Message, grads: Mapping[int, Tensor]) -> Delivery:
    """Send gradients of halo rows ``[H, F_k]`` of some blocks to their owners; what is returned waits for ``[S, F_k]``."""
    channel, plan, slots, step, exact, _ = message
    sent = [(_adjoint(slots[k]), grad.contiguous()) for k, grad in grads.items()]
    return channel.start(sent, plan.recv_counts, plan.send_counts, step, plan.recv_key, exact)


def _adjoint(slot: Slot) -> Slot:
    return slot.as_role(Role.GRADIENT) if slot.role is Role.FEATURE else slot


def exchange_rows(blocks: Sequence[Tensor], message: Message) -> list[Tensor]:
    """Return the ``[H, *F_k]`` halo rows of node tensors ``[n, *F_k]`` in one exchange; gradients travel back to their owners."""
    flat = [x.reshape(x.size(0), math.prod(x.shape[1:])) for x in blocks]
    received = _Exchange.apply(message, *flat)  # type: ignore[no-untyped-call]
    return [rows.view(message.plan.num_halo, *x.shape[1:]) for rows, x in zip(received, blocks, strict=True)]


class _Collect(torch.autograd.Function):
    """``[H, F] -> [n, F]``: halo rows go to their owners, who add them up; the adjoint is the exchange."""

    @staticmethod
    def forward(ctx: Any, message: Message, x: Tensor) -> Tensor:
        ctx.message = message
        channel, plan, (slot,), step, exact, _ = message
        (rows,) = channel.carry([(slot, x)], plan.recv_counts, plan.send_counts, step, plan.recv_key, exact)
        return rows.new_zeros(plan.num_local, rows.size(1)).index_add_(0, plan.send_index, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        channel, plan, (slot,), step, exact, _ = ctx.message
        sent = grad.index_select(0, plan.send_index)
        (rows,) = channel.carry([(slot, sent)], plan.send_counts, plan.recv_counts, step, plan.send_key, exact)
        return None, rows


def collect_rows(x: Tensor, message: Message) -> Tensor:
    """Return, for own nodes ``[n, *F]``, the sum of what all ranks hold for them in their halo rows ``x`` of shape ``[H, *F]``."""
    flat = x.reshape(x.size(0), math.prod(x.shape[1:]))
    rows: Tensor = _Collect.apply(message, flat)  # type: ignore[no-untyped-call]
    return rows.view(message.plan.num_local, *x.shape[1:])


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks; the adjoint of a sum that every rank uses is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel, slot: Slot, known: Tensor | None) -> Tensor:
        ctx.channel, ctx.slot = channel, slot
        return channel.all_reduce(x, slot) if known is None else known.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.channel.all_reduce(grad, ctx.slot), None, None, None


def all_reduce_sum(x: Tensor, channel: Channel, slot: Slot, known: Tensor | None = None) -> Tensor:
    """Return the sum of ``x`` over all ranks, differentiably; if it is ``known``, only gradients are summed."""
    total: Tensor = _AllReduceSum.apply(x, channel, slot, known)  # type: ignore[no-untyped-call]
    return total
