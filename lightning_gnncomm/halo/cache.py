"""Values computed from tensors, found again by the identity of these."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

__all__ = ["TensorCache", "TensorMemo"]

T = TypeVar("T")

_UNTRACKED = -1
"""Version of tensors made under inference_mode, whose changes in place are not counted."""


def _version(tensor: Tensor) -> int:
    return _UNTRACKED if tensor.is_inference() else tensor._version


class TensorCache(Generic[T]):
    """Values computed from tensors, found again while those very tensors are unchanged.

    Tensors are compared by identity and version, never by content, so that all ranks hit or miss alike. The least recently used
    entry goes when there are more than ``capacity``, which may be raised at any time.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Any, tuple[Any, T]] = OrderedDict()

    @staticmethod
    def _key(tensors: tuple[Tensor | None, ...], extra: tuple[Any, ...]) -> Any:
        return tuple((id(t), None if t is None else _version(t)) for t in tensors), extra

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
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)
        return value

    def find(self, accept: Callable[[T], bool]) -> T | None:
        """Return the first stored value that is accepted, or ``None``."""
        return next((value for _, value in self._entries.values() if accept(value)), None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()


class TensorMemo(Generic[T]):
    """One value a tensor, found again while that very tensor is unchanged and gone when the tensor is.

    There is no capacity, and all ranks still hit or miss alike: who looks a value up holds the tensor, so it has lived since the
    value was put, and nothing depends on when another tensor is freed. What is kept is bounded by the tensors alive, a value each:
    in training those that autograd saves, in validation those a model still holds, however many layers there are. An entry
    knows its tensor by a weak reference and not by its id, which a later tensor may get. Values must not refer to their tensor.

    Example:
        >>> import torch
        >>> memo, x = TensorMemo(), torch.ones(2)
        >>> memo.put("rows of x", x)
        >>> memo.get(x), memo.get(x.clone())
        ('rows of x', None)
        >>> del x
        >>> len(memo)
        0
    """

    def __init__(self) -> None:
        self._entries: dict[Any, tuple[weakref.ref[Tensor], int, T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensor: Tensor, extra: tuple[Any, ...] = ()) -> T | None:
        """Return the value put for this tensor, or ``None``."""
        reference, version, value = self._entries.get((id(tensor), extra), (None, None, None))
        return value if reference is not None and reference() is tensor and version == _version(tensor) else None

    def put(self, value: T, tensor: Tensor, extra: tuple[Any, ...] = ()) -> None:
        """Store a value for as long as the tensor lives."""
        key, entries = (id(tensor), extra), self._entries

        def forget(reference: weakref.ref[Tensor]) -> None:
            # The id may be another tensor's by now.
            if key in entries and entries[key][0] is reference:
                del entries[key]

        entries[key] = (weakref.ref(tensor, forget), _version(tensor), value)

    def forget_untracked(self) -> None:
        """Forget the values of tensors whose changes cannot be seen."""
        for key in [key for key, (_, version, _) in self._entries.items() if version == _UNTRACKED]:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
