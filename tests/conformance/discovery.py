"""What the installed PyG has, and the cases that cover it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import nn
from torch_geometric.nn import aggr, conv, models, norm
from torch_geometric.nn.conv import MessagePassing

from tests.conformance.adjacencies import ADJACENCIES
from tests.conformance.compositions import COMPOSITIONS
from tests.conformance.convs import CONVS
from tests.conformance.models import MODELS
from tests.conformance.norms import AGGREGATIONS, NORMS, aggregation_case
from tests.conformance.recipes import Recipe, cases_of
from tests.conformance.suite import Case

__all__ = ["all_cases", "classes_of", "without_recipe"]

GROUPS: dict[str, tuple[ModuleType, dict[str, Recipe]]] = {
    "conv": (conv, CONVS),
    "norm": (norm, NORMS),
    "aggr": (aggr, AGGREGATIONS),
    "models": (models, MODELS),
}
ABSTRACT = ("MessagePassing", "Aggregation")


def _subclasses(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def classes_of(group: str) -> list[str]:
    """Return the names of all module classes of a part of PyG: those it exports, and layers it forgot to export."""
    module, _ = GROUPS[group]
    names = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
    if group == "conv":
        hidden = {cls.__name__ for cls in _subclasses(MessagePassing) if cls.__module__.startswith(f"{conv.__name__}.")}
        names += sorted(hidden - set(names))
    return [name for name in names if name not in ABSTRACT]


def without_recipe() -> list[tuple[str, str]]:
    """Return group and name of the classes nobody has written a recipe for: a new PyG, most likely."""
    return [(group, name) for group in GROUPS for name in classes_of(group) if name not in GROUPS[group][1]]


def all_cases() -> list[Case]:
    """Return every case of every class that the installed PyG has, then the compositions."""
    cases: list[Case] = []
    for group, (module, recipes) in GROUPS.items():
        for name in classes_of(group):
            if name in recipes:
                cases += cases_of(group, _maker(group, module, name), name, recipes[name])
            if name in ADJACENCIES.get(group, {}):
                cases += cases_of(group, _maker(group, module, name), name, ADJACENCIES[group][name])
    for name, (make, found) in COMPOSITIONS.items():
        cases += cases_of("composition", make, name, found)
    return cases


def _maker(group: str, module: Any, name: str) -> Callable[..., nn.Module]:
    return aggregation_case(name) if group == "aggr" else getattr(module, name)
