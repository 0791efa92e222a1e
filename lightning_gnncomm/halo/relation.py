"""Which nodes lie at the ends of a layer's edges: on a heterogeneous part that depends on the edge type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.to_hetero_transformer import key2str

from lightning_gnncomm.graph.plan import HaloPlan

__all__ = ["EdgeType", "Plans", "Relation", "Relations", "tensors_in"]

EdgeType = tuple[str, str, str]
"""Type of the source nodes, name of the relation, type of the target nodes."""

Plans = HaloPlan | Mapping[str, HaloPlan]
"""The halo plan of a part, or one for each node type of a heterogeneous one."""


@dataclass(frozen=True, eq=False)
class Relation:
    """The nodes that a layer's messages come from and go to.

    Args:
        plan: Halo plan of the source nodes: ``n_src`` own and ``H_src`` halo rows.
        num_targets: Number of own target nodes ``n_dst``.
        node_ids: Global ids of own source nodes ``[n_src]``, ascending; ``None`` if the part does not tell.
        is_bipartite: Whether sources and targets are of different types.
    """

    plan: HaloPlan
    num_targets: int
    node_ids: Tensor | None
    is_bipartite: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Rows that edges count at their two ends: own and halo sources, and own targets."""
        return self.plan.num_local + self.plan.num_halo, self.num_targets

    def all_ids(self) -> Tensor:
        """Return the global ids of own and halo source nodes, ``[n_src + H_src]``."""
        assert self.node_ids is not None
        return torch.cat([self.node_ids, self.plan.halo_ids])


class Relations:
    """The relations of one part, found by the edges a layer is given or by its place in the model.

    A homogeneous part has one relation, which every layer reads. On a heterogeneous part a layer is told by an ``edge_index`` that is
    the batch's own; where a model filters edges first, by the edge type in its path, under which ``HeteroConv`` and ``to_hetero``
    keep it.

    Args:
        plans: Halo plan of the part, or of each of its node types.
        tensors: The part's attributes, as ``to_dict()`` of a ``Data`` or ``HeteroData`` gives them.
    """

    def __init__(self, plans: Plans, tensors: Mapping[Any, Any]) -> None:
        self.single: Relation | None = None
        """The one relation of a homogeneous part."""
        self._by_type: dict[str, Relation] = {}
        self._by_name: dict[str, Relation] = {}
        # Edges are held, so that no other tensor gets their id.
        self._by_edges: dict[int, tuple[Tensor, Relation]] = {}
        if isinstance(plans, HaloPlan):
            self.single = Relation(plans, plans.num_local, tensors.get("n_id"))
        else:
            self._add_types(plans, tensors)
        plan = plans if isinstance(plans, HaloPlan) else next(iter(plans.values()))
        self.num_parts = plan.num_parts

    def _add_types(self, plans: Mapping[str, HaloPlan], tensors: Mapping[Any, Any]) -> None:
        for node_type, plan in plans.items():
            self._by_type[node_type] = Relation(plan, plan.num_local, tensors[node_type].get("n_id"))
        for key, store in tensors.items():
            if not isinstance(key, tuple):
                continue
            source, _, target = key
            relation = self._by_type[source]
            if source != target:
                relation = Relation(relation.plan, plans[target].num_local, relation.node_ids, is_bipartite=True)
            self._by_name |= {ModuleDict.to_internal_key(key): relation, key2str(key): relation}
            self.add(store.get("edge_index"), relation)

    def __len__(self) -> int:
        return 1 if self.single is not None else max(len(self._by_edges), len(self._by_type))

    @property
    def num_own(self) -> set[int]:
        """Numbers of own nodes, of each type, that more than chance tells apart from other sizes."""
        relations = [self.single] if self.single is not None else list(self._by_type.values())
        return {relation.plan.num_local for relation in relations if relation.plan.num_local > 1}

    def add(self, edges: Any, relation: Relation) -> None:
        """Let edges be known by their identity for the rest of the step."""
        if isinstance(edges, Tensor):
            self._by_edges[id(edges)] = (edges, relation)

    def of_edges(self, arguments: Iterable[Any]) -> Relation | None:
        """Return the relation of the first known edges among arguments and dicts of them, ``None`` if there are none."""
        found = (self._by_edges.get(id(tensor)) for argument in arguments for tensor in tensors_in(argument))
        return next((entry[1] for entry in found if entry is not None), None)

    def add_named(self, arguments: Iterable[Any]) -> None:
        """Let edges be known that a model computed and gave to a layer in a dict by edge type."""
        if self.single is None:
            for named in arguments:
                for key, edges in named.items() if isinstance(named, Mapping) else ():
                    if isinstance(key, tuple) and (relation := self._by_name.get(key2str(key))) is not None:
                        self.add(edges, relation)

    def of_path(self, path: str) -> Relation | None:
        """Return the relation whose edge type a module's path names, the innermost if several do."""
        parts = reversed(path.split("."))
        return next((self._by_name[part] for part in parts if part in self._by_name), None)

    def of_edge_type(self, edge_type: EdgeType | None) -> Relation:
        """Return the relation of an edge type, or the only one."""
        if self.single is not None:
            return self.single
        assert edge_type is not None
        return self._by_name[key2str(edge_type)]

    def of_source(self, node_type: str) -> Relation:
        """Return the relation of nodes of one type among themselves, for exchanging their rows."""
        return self.single if self.single is not None else self._by_type[node_type]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield a tensor, or those in nested dicts; lists are left alone, which may have an entry a node.

    Example:
        >>> [t.item() for t in tensors_in({"a": torch.tensor(1), ("a", "b"): {"c": torch.tensor(2), "d": None}})]
        [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
