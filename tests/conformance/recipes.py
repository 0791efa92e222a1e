"""The words in which recipes are written: how a class is built and called, and what is varied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

from tests.conformance.suite import Case

__all__ = [
    "ADJ_T",
    "ATTR",
    "EDGES",
    "TYPE",
    "WEIGHT",
    "Later",
    "Option",
    "Recipe",
    "cases_of",
    "labelled",
    "layer",
    "mlp",
    "opt",
]
__all__ += ["recipe", "takes", "unfit"]


class Later(NamedTuple):
    """An argument that is made when the module is built, with the parameters that the seed gives."""

    make: Callable[[], Any]
    text: str


def mlp(*sizes: int) -> Later:
    """A network with one hidden layer."""
    hidden = max(sizes[0], 8)
    return Later(lambda: nn.Sequential(nn.Linear(sizes[0], hidden), nn.ELU(), nn.Linear(hidden, sizes[1])), "MLP")


def layer(name: str, *args: Any, **kwargs: Any) -> Later:
    """A PyG layer given to another one."""
    words = [name, *(f"{k}={v}" for k, v in kwargs.items())]
    return Later(lambda: getattr(pyg, name)(*args, **kwargs), " ".join(words))


class Inputs(NamedTuple):
    """What a layer is called with: attributes of the graph by position and by name."""

    positional: tuple[str, ...]
    named: dict[str, str]
    text: str

    def __call__(self, module: nn.Module, data: Data) -> Any:
        return module(*(data[k] for k in self.positional), **{k: data[v] for k, v in self.named.items()})


def takes(*positional: str, **named: str) -> Inputs:
    """Return the inputs of a call; what is not always there is named in the table."""
    usual = ("x", "edge_index", "x_0", "pos", "normal", "node_type")
    return Inputs(positional, named, ", ".join([*(p for p in positional if p not in usual), *named]))


def labelled(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a call of its own kind a name for the table."""

    def label(function: Callable[..., Any]) -> Callable[..., Any]:
        function.text = text  # type: ignore[attr-defined]
        return function

    return label


EDGES = takes("x", "edge_index")
WEIGHT = takes("x", "edge_index", edge_weight="edge_weight")
ATTR = takes("x", "edge_index", edge_attr="edge_attr")
ADJ_T = takes("x", "adj_t")
TYPE = takes("x", "edge_index", edge_type="edge_type")


class Option(NamedTuple):
    """One case of a recipe: how the module is called, on which kind of graph, and its keyword arguments."""

    call: Any
    kind: str
    kwargs: dict[str, Any]


class Recipe(NamedTuple):
    """Positional arguments that all cases of a class share, the cases, and whether it cannot run over parts."""

    args: tuple[Any, ...]
    options: list[Option]
    unfit: bool = False


def opt(call: Any = EDGES, /, on: str = "random", **kwargs: Any) -> Option:
    """One case; ``on`` is the kind of graph."""
    return Option(call, on, kwargs)


def recipe(*args: Any) -> Callable[..., Recipe]:
    """Return what collects the cases of a class whose positional arguments are ``args``."""
    return lambda *options: Recipe(args, list(options))


def unfit(*args: Any, **kwargs: Any) -> Recipe:
    """A class that computes something else than rows of nodes from a graph; it has to be refused."""
    return Recipe(args, [Option(EDGES, "random", kwargs)], unfit=True)


def cases_of(group: str, make: Callable[..., nn.Module], name: str, found: Recipe) -> list[Case]:
    """Return the cases of a class."""
    return [_case(group, make, name, found, option) for option in found.options]


def _case(group: str, make: Callable[..., nn.Module], name: str, found: Recipe, option: Option) -> Case:
    def build() -> nn.Module:
        return make(*map(_value, found.args), **{k: _value(v) for k, v in option.kwargs.items()})

    words = [] if found.unfit else [f"{k}={_text(v)}" for k, v in option.kwargs.items()]
    words += [option.call.text] if option.call.text else []
    words += [f"{option.kind} graph"] if option.kind not in ("random", "adj_t") else []
    static = bool(option.kwargs.get("cached"))
    return Case(group, name, ", ".join(words), build, option.call, option.kind, static, found.unfit)


def _value(argument: Any) -> Any:
    return argument.make() if isinstance(argument, Later) else argument


def _text(argument: Any) -> str:
    if isinstance(argument, Later):
        return argument.text
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(map(_text, argument)) + "]"
    if isinstance(argument, dict):
        return " ".join(f"{k}={_text(v)}" for k, v in argument.items())
    return "histogram" if isinstance(argument, Tensor) else str(argument)
