"""Functions that PyG layers look up in their module's namespace, made aware of the layer call they run in."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from lightning_gnncomm.halo.context import Scope, current_scope

__all__ = ["Redirection"]


class Redirection:
    """Routes a function that PyG modules imported by name to ours, while an intercepted layer call is in progress.

    PyG layers that normalise inside ``forward`` call functions such as ``gcn_norm`` through a name in their own module. The name
    is bound to a dispatcher that calls ``replacement`` inside an intercepted call and the original everywhere else, so models
    without a halo strategy in the same process see no difference. Installed while at least one model is attached.

    Args:
        prefix: Only modules whose name starts with this are touched.
        original: The function to route.
        replacement: Called as ``replacement(scope, original, *args, **kwargs)`` instead.
    """

    def __init__(self, prefix: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        self._prefix = prefix
        self._original = original
        self._replacement = replacement
        self._users = 0
        self._lock = threading.Lock()
        self._bound: list[tuple[Any, str]] = []

    def install(self) -> None:
        """Bind the dispatcher wherever the original is bound (once, however many models are attached)."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            dispatch = self._dispatcher()
            # Copies, since another thread may import meanwhile (PyG generates modules as layers are made).
            for name, module in sys.modules.copy().items():
                if name.startswith(self._prefix):
                    for attribute, value in vars(module).copy().items():
                        if value is self._original:
                            setattr(module, attribute, dispatch)
                            self._bound.append((module, attribute))

    def remove(self) -> None:
        """Bind the original again when the last user leaves."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for module, attribute in self._bound:
                    setattr(module, attribute, self._original)
                self._bound.clear()

    def _dispatcher(self) -> Callable[..., Any]:
        original, replacement = self._original, self._replacement

        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            scope: Scope | None = current_scope()
            if scope is None:
                return original(*args, **kwargs)
            return replacement(scope, original, *args, **kwargs)

        return dispatch
