"""Names of messages: which layer, which argument, which call, in which role."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

__all__ = ["Role", "Slot"]


class Role(str, Enum):
    """What the rows of a message are; it decides whether a codec may lose bits of them.

    ``FEATURE`` rows travel forward and ``GRADIENT`` rows backward: both may be encoded. ``CONSTANT`` rows (the raw features of a
    batch, which never change) and ``NORM`` rows (degrees, statistics, rows gathered for attention to all nodes, and the gradients
    of these) are always exact.
    """

    FEATURE = "feature"
    GRADIENT = "gradient"
    CONSTANT = "constant"
    NORM = "norm"

    @property
    def is_lossy(self) -> bool:
        """Whether a codec may be applied to rows in this role."""
        return self in (Role.FEATURE, Role.GRADIENT)


@dataclass(frozen=True)
class Slot:
    """The name of a message that recurs at every step.

    Args:
        layer: Path of the layer inside the LightningModule, e.g. ``"model.convs.0"``.
        argument: Argument of ``propagate`` whose rows travel, e.g. ``"x"``.
        call: How often this argument of this layer was exchanged before in the same step.
        chunk: Chunk of the partition the rows belong to (0 when it is not chunked).
        role: What the rows are.

    Example:
        >>> slot = Slot("convs.0", "x")
        >>> slot.as_role(Role.GRADIENT).role.value
        'gradient'
    """

    layer: str
    argument: str
    call: int = 0
    chunk: int = 0
    role: Role = Role.FEATURE

    def as_role(self, role: Role) -> Slot:
        """Return the same message in another role (the backward twin of a forward message)."""
        return replace(self, role=role)

    @property
    def key(self) -> int:
        """A 63-bit number that is the same in every process and every run, for counter-based randomness."""
        text = f"{self.layer}\0{self.argument}\0{self.call}\0{self.chunk}\0{self.role.value}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def as_plain(self) -> tuple[str, str, int, int, str]:
        """Return the name as plain data, for checkpoints."""
        return self.layer, self.argument, self.call, self.chunk, self.role.value

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Slot:
        """Return the slot that :meth:`as_plain` described."""
        layer, argument, call, chunk, role = plain
        return cls(layer, argument, call, chunk, Role(role))

    def __str__(self) -> str:
        call = f"#{self.call}" if self.call else ""
        return f"{self.layer}.{self.argument}{call}"
