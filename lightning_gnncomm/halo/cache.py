"""Values computed from tensors, found again by the identity of these."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

__all__ = ["TensorCache"]

T = TypeVar("T")


class TensorCache(Generic[T]):
    """Values computed from tensors, found again while those very tensors are unchanged.

    Tensors are compared by identity and version, never by content, so that all ranks hit or miss alike. The least recently used
    entry goes when there are more than ``capacity``.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Any, tuple[Any, T]] = OrderedDict()

    @staticmethod
    def _key(tensors: tuple[Tensor | None, ...], extra: tuple[Any, ...]) -> Any:
        return tuple((id(t), -1 if t is None or t.is_inference() else t._version) for t in tensors), extra

    def get(self, *tensors: Tensor | None, extra: tuple[Any, ...] = ()) -> T | None:
        """Return the value stored for these tensors, or ``None``."""
        key = self._key(tensors, extra)
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][1]

    def put(self, value: T, *tensors: Tensor | None, extra: tuple[Any, ...] = ()) -> T:
        """Store and return a value; the tensors are kept alive with it, so that an id is never met twice."""
        self._entries[self._key(tensors, extra)] = (tensors, value)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return value

    def find(self, accept: Callable[[T], bool]) -> T | None:
        """Return the first stored value that is accepted, or ``None``."""
        return next((value for _, value in self._entries.values() if accept(value)), None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
