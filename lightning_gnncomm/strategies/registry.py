"""Names under which ``Trainer(strategy=...)`` finds the strategies of this package."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from lightning.pytorch.strategies import StrategyRegistry

from lightning_gnncomm.strategies.halo import HaloStrategy

__all__ = ["PRESETS", "register_strategies"]

PRESETS: dict[str, dict[str, Any]] = {
    "halo": {"codec": "identity", "schedule": "sync"},
    "sylvie": {"codec": "delta_sign", "schedule": "adaptive"},
    "sylvie_sync": {"codec": "one_bit", "schedule": "sync"},
    "sylvie_async": {"codec": "one_bit", "schedule": "async"},
}
"""Arguments of :class:`HaloStrategy` by preset name."""

_START_METHODS = {"": "popen", "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}


def register_strategies() -> None:
    """Enter every preset, with the start methods Lightning's own ``ddp`` has, in Lightning's registry."""
    for preset, arguments in PRESETS.items():
        for suffix, start_method in _START_METHODS.items():
            StrategyRegistry.register(
                preset + suffix,
                HaloStrategy,
                description=f"HaloStrategy({', '.join(f'{k}={v!r}' for k, v in arguments.items())}), started by {start_method}",
                override=True,
                start_method=start_method,
                **arguments,
            )
    _explain_other_class_tree()


def _refuse(**_: Any) -> None:
    raise ImportError(
        "This strategy belongs to 'lightning.pytorch', but the Trainer is one of 'pytorch_lightning', whose classes are different "
        "ones. Write 'import lightning.pytorch as pl' instead of 'import pytorch_lightning as pl', for the LightningModule too."
    )


def _register_refusal() -> None:
    registry = sys.modules["pytorch_lightning.strategies"].StrategyRegistry
    for preset in PRESETS:
        for suffix in _START_METHODS:
            registry[preset + suffix] = {
                "description": "needs lightning.pytorch",
                "init_params": {},
                "strategy": _refuse,
            }


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Enters the refusal right after ``pytorch_lightning`` is imported, if it ever is."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pytorch_lightning":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register_refusal()


def _explain_other_class_tree() -> None:
    if "pytorch_lightning.strategies" in sys.modules:
        _register_refusal()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
