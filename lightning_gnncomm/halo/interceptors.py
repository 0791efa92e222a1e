"""Hooks that give a PyG message-passing layer the rows of remote nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import Aggregation, MLPAggregation
from torch_geometric.nn.conv import DirGNNConv, FastRGCNConv, HGTConv, MessagePassing, RGCNConv
from torch_geometric.utils import is_sparse, is_torch_sparse_tensor

from lightning_gnncomm.graph.adjacency import entries
from lightning_gnncomm.halo.context import HaloContext, Scope, enter_scope, leave_scope
from lightning_gnncomm.halo.relation import Relation
from lightning_gnncomm.halo.sparse import aggregator

__all__ = [
    "intercept_aggregation",
    "intercept_directed",
    "intercept_layer",
    "removal",
    "scope_hooks",
    "unsplittable_arguments",
]


def intercept_layer(layer: MessagePassing, path: str, context: HaloContext) -> Callable[[], None]:
    """Attach the hooks of one layer and return what takes them off again.

    Args:
        layer: The layer; its class and parameters stay as they are.
        path: Its path inside the model, for slots and messages.
        context: The shared state of the model's hooks.
    """
    handles = [*scope_hooks(layer, path, context)]
    if type(layer).__name__ in _WANT_SQUARE:
        handles.append(layer.register_forward_pre_hook(_list_edges(type(layer), context), with_kwargs=True))
    arguments = _source_arguments([*layer._user_args, *layer._fused_user_args])
    single = _single_arguments(layer)
    if any(_reads_sequences(module) for module in layer.modules()):
        handles.append(layer.register_propagate_forward_pre_hook(_order_hook(context)))
    if isinstance(layer, HGTConv):
        _extend_keys_and_values(layer, path, context)  # `propagate` sees the nodes of all types as one list
    else:
        hook = _exchange_hook(path, arguments, context, fusible=True, single=single)
        handles.append(layer.register_propagate_forward_pre_hook(hook))
    if isinstance(layer, RGCNConv):
        handles.append(_give_ids(layer, context))
    if layer.inspector.implements("edge_update"):
        arguments = _source_arguments(layer._edge_user_args)
        handles.append(layer.register_edge_update_forward_pre_hook(_exchange_hook(path, arguments, context)))
        handles.append(_postpone_edge_update(layer, arguments, context))

    _give_update_own_rows(layer, single, context)
    if layer.flow == "target_to_source":
        # The generated propagate always takes the first of a pair for the source side.
        layer.propagate = MethodType(MessagePassing.propagate, layer)
        handles += _reversal_hooks(layer, path, context)

    def revert() -> None:
        for handle in handles:
            handle.remove()
        for name in ("edge_updater", "propagate", "update", "message", "_construct_src_node_feat"):
            layer.__dict__.pop(name, None)
        _drop_cached_normalisation(layer)

    _drop_cached_normalisation(layer)
    return revert


_WANT_SQUARE = frozenset({"ClusterGCNConv"})
"""Layers that insist on a square matrix, of which they read nothing but the places of entries."""


def _list_edges(layer: type[torch.nn.Module], context: HaloContext) -> Callable[..., Any]:
    """Return a pre-hook that gives a layer the entries of a sparse matrix as edges."""
    signature = inspect.signature(layer.forward)

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = signature.bind(module, *args, **kwargs).arguments
        adjacency = call["edge_index"]
        if not context.is_distributed or not is_torch_sparse_tensor(adjacency) or adjacency.layout != torch.sparse_csr:
            return None
        call["edge_index"] = entries(adjacency)[0]
        call.pop("self")
        return (), call

    return enter


def _source_arguments(names: list[str]) -> list[str]:
    """Return the arguments read per edge at its source node: exactly those whose halo rows a layer needs."""
    return sorted({name[:-2] for name in names if name.endswith("_j")})


class _Postponed(NamedTuple):
    """An edge update that waits for ``propagate``, so that the rows of both travel together."""

    blocks: dict[str, Tensor]
    update: Callable[[], Any]


def _postpone_edge_update(layer: MessagePassing, arguments: list[str], context: HaloContext) -> RemovableHandle:
    """Replace ``edge_updater`` by one whose exchange is that of the ``propagate`` that follows.

    The Python ``edge_updater`` takes the place of the generated one, which runs its pre-hooks after rows were lifted to edges.
    """
    signature = inspect.signature(type(layer).forward)
    waits = [False]

    def look(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = signature.bind_partial(module, *args, **kwargs).arguments
        # Attention weights are returned as they are, so they cannot be left for later.
        waits[0] = call.get("return_attention_weights") is None

    def edge_updater(self: MessagePassing, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
        def update() -> Any:
            return MessagePassing.edge_updater(self, edge_index, size, **kwargs)

        pairs = {name: value for name in arguments if isinstance(value := kwargs.get(name), (tuple, list))}
        blocks = {f"{name}.edge": pair[0] for name, pair in pairs.items() if isinstance(pair[0], Tensor)}
        ours = type(self).__module__.startswith("torch_geometric.") and context.is_distributed
        return _Postponed(blocks, update) if waits[0] and blocks and ours else update()

    layer.edge_updater = MethodType(edge_updater, layer)
    handle: RemovableHandle = layer.register_forward_pre_hook(look, with_kwargs=True)
    return handle


def _single_arguments(layer: MessagePassing) -> set[str]:
    """Return the arguments that ``message_and_aggregate`` takes as one tensor."""
    if not layer.fuse:
        return set()
    parameters = layer.inspector.get_signature("message_and_aggregate").param_dict
    return {name for name, parameter in parameters.items() if parameter.type_repr in ("Tensor", "torch.Tensor")}


def unsplittable_arguments(layer: MessagePassing) -> list[str]:
    """Return the arguments that ``message`` or ``aggregate`` reads whole though a rank holds only a part of them.

    These are the ids of edges' ends, and node tensors that are also read per edge, whose source side is extended.
    """
    read = set(layer.inspector.get_flat_param_names(["message", "aggregate"]))
    ids = {"edge_index", "edge_index_i", "edge_index_j"}
    return sorted(read & (ids | set(_source_arguments(layer._user_args))))


def _give_update_own_rows(layer: MessagePassing, single: Collection[str], context: HaloContext) -> None:
    """Let ``update`` see own rows of arguments that were extended for their source side, as pairs or, when fused, by themselves."""
    parameters = layer.inspector.get_flat_param_names(["update"], exclude=layer.special_args)
    names = set(parameters) & set(_source_arguments(layer._user_args))
    if not names:
        return

    def update(self: MessagePassing, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        place = 1 if self.flow == "source_to_target" else 0
        own = {k: v[place] if k in names and isinstance(v, tuple) else v for k, v in kwargs.items()}
        for name in names.intersection(single):
            if context.is_distributed and isinstance(own[name], Tensor):
                own[name] = own[name].narrow(self.node_dim, 0, context.relation.num_targets)
        return type(self).update(self, inputs, *args, **own)

    layer.update = MethodType(update, layer)


def _pads(module: Aggregation) -> bool:
    return "max_num_elements" in inspect.signature(module.forward).parameters


def _reads_sequences(module: torch.nn.Module) -> bool:
    """Whether an aggregation reads neighbours one after the other, padded to the largest in-degree or to a fixed number."""
    return isinstance(module, MLPAggregation) or (isinstance(module, Aggregation) and _pads(module))


def _order_hook(context: HaloContext) -> Callable[..., None]:
    """Return a propagate pre-hook that notes the whole graph's order of a matrix's entries; in its rows halo nodes come last."""

    def hook(module: MessagePassing, inputs: tuple[Any, ...]) -> None:
        if context.is_distributed and is_torch_sparse_tensor(inputs[0]) and inputs[0].layout == torch.sparse_csr:
            (source, target), _ = entries(inputs[0])
            key = target * context.relation.plan.num_global + context.relation.all_ids()[source]
            context.neighbour_order = key.argsort(stable=True)

    return hook


def _extend_keys_and_values(layer: HGTConv, path: str, context: HaloContext) -> None:
    """Append the halo rows of each source type to its keys and values, in one exchange a type."""

    def construct(
        self: HGTConv, k_dict: dict[str, Tensor], v_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]
    ) -> Any:
        k_dict, v_dict = dict(k_dict), dict(v_dict)
        if context.is_distributed:
            before = context.current
            for node_type in dict.fromkeys(edge_type[0] for edge_type in edge_index_dict):
                context.current = context.relations.of_source(node_type)
                names = f"k.{node_type}", f"v.{node_type}"
                rows = context.extend_all({names[0]: k_dict[node_type], names[1]: v_dict[node_type]}, path)
                k_dict[node_type], v_dict[node_type] = rows[names[0]], rows[names[1]]
            context.current = before
        return type(self)._construct_src_node_feat(self, k_dict, v_dict, edge_index_dict)

    layer._construct_src_node_feat = MethodType(construct, layer)


def _give_ids(layer: RGCNConv, context: HaloContext) -> RemovableHandle:
    """Let RGCNConv, which looks up embeddings by node number where it gets no features, count nodes as the whole graph does."""

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else kwargs["x"]
        if not context.is_distributed or first is not None:
            return None
        ids = context.relation.node_ids
        return ((ids, *args[1:]), kwargs) if args else (args, kwargs | {"x": ids})

    if isinstance(layer, FastRGCNConv):

        def message(self: FastRGCNConv, x_j: Tensor, edge_type: Tensor, edge_index_j: Tensor) -> Tensor:
            ids = edge_index_j if x_j.is_floating_point() else x_j  # its own would take a place in the part for an id
            return type(self).message(self, x_j, edge_type, ids)  # type: ignore[no-any-return]

        layer.message = MethodType(message, layer)
    handle: RemovableHandle = layer.register_forward_pre_hook(enter, with_kwargs=True)
    return handle


def intercept_aggregation(layer: Aggregation, path: str, context: HaloContext) -> Callable[[], None]:
    """Let an aggregation of sequences see those of the whole graph, padded to its largest in-degree; return what reverts it."""
    if not _reads_sequences(layer):
        return lambda: None
    pads = _pads(layer)

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.is_distributed:
            return None
        if context.neighbour_order is not None:
            args = (args[0].index_select(kwargs.get("dim", -2), context.neighbour_order), *args[1:])
        if not pads or kwargs.get("max_num_elements") is not None:
            return args, kwargs
        call = dict(zip(("x", "index", "ptr"), args, strict=False)) | kwargs
        degree = torch.bincount(call["index"], minlength=1) if call.get("ptr") is None else call["ptr"].diff()
        largest = int(context.channel.wire.all_reduce(degree.max(), "max"))
        return args, kwargs | {"max_num_elements": largest}

    return removal([layer.register_forward_pre_hook(enter, with_kwargs=True)])


def removal(handles: list[RemovableHandle]) -> Callable[[], None]:
    """Return a function that takes hooks off."""

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def intercept_directed(layer: DirGNNConv, path: str, context: HaloContext) -> Callable[[], None]:
    """Let the half of a DirGNNConv that sees flipped edges work on this part's out-edges; return what reverts it."""
    given: list[Tensor] = []

    def remember(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given[:] = [kwargs["edge_index"] if "edge_index" in kwargs else args[1]]

    handles = [layer.register_forward_pre_hook(remember, with_kwargs=True)]
    handles += _reversal_hooks(layer.conv_out, f"{path}.conv_out", context, given)
    return removal(handles)


def _reversal_hooks(
    layer: torch.nn.Module, path: str, context: HaloContext, given: list[Tensor] | None = None
) -> list[RemovableHandle]:
    """Run a layer's calls on the part's out-edges.

    Args:
        layer: Layer that aggregates over out-edges.
        path: Its path.
        context: The shared state.
        given: Where the unflipped edges are found, for a layer that is called with flipped ones.
    """
    signature = inspect.signature(type(layer).forward)

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.is_distributed:
            return None
        call = signature.bind(module, *args, **kwargs).arguments
        if is_sparse(call["edge_index"]):
            raise ValueError(
                f"Layer '{path}' aggregates against the direction of edges, which PyG does for edges [2, E] only, but got a sparse "
                f"matrix. Pass 'edge_index'."
            )
        reversal = context.reversal(given[0] if given else call["edge_index"], path)
        call["edge_index"] = reversal.edge_index if given else reversal.flipped
        for name in ("edge_weight", "edge_attr", "edge_type"):
            if isinstance(call.get(name), Tensor):
                call[name] = context.reversed_values(call[name], reversal, path, name)
        if given is None:
            # The layer's scope began with other edges; it also ends what is set here.
            context.turn_to([call["edge_index"]])
        call.pop("self")
        return (), call

    return [layer.register_forward_pre_hook(enter, with_kwargs=True)]


def _drop_cached_normalisation(layer: MessagePassing) -> None:
    """Forget what ``cached=True`` kept: it belongs to another adjacency before attaching and after detaching."""
    for name in ("_cached_edge_index", "_cached_adj_t"):
        if getattr(layer, name, None) is not None:
            setattr(layer, name, None)


def scope_hooks(layer: torch.nn.Module, path: str, context: HaloContext) -> list[RemovableHandle]:
    """Mark the layer's calls on the thread, so that redirected functions know where they are called from and on which edges."""
    before: list[Relation | None] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context.begin_call(path)
        args, kwargs = tuple(map(context.own, args)), {name: context.own(value) for name, value in kwargs.items()}
        if context.is_distributed:
            context.forget_untracked_rows()
            arguments = (*args, *kwargs.values())
            context.relations.add_named(arguments)
            before.append(context.turn_to(arguments, path))
            enter_scope(Scope(context, path))
        return args, kwargs

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        if before:
            leave_scope()
            context.current = before.pop()
        context.end_call()

    return [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave, always_call=True),
    ]


def _check_matrix(adj_t: Any, relation: Relation, path: str) -> None:
    """Refuse a sparse matrix that does not lead from own and halo nodes to own nodes."""
    size = relation.size[::-1]
    if not is_torch_sparse_tensor(adj_t) or tuple(adj_t.shape[:2]) != size:
        got = f"shape {list(adj_t.shape)}" if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise ValueError(
            f"Layer '{path}' needs a sparse adjacency of torch from own and halo nodes to own nodes, shape {list(size)}, got {got}. "
            f"Use 'batch.adj_t' of GraphDataModule(layout='csr') or of a graph that has 'adj_t' before it is partitioned."
        )


def _exchange_hook(
    path: str, arguments: list[str], context: HaloContext, fusible: bool = False, single: Collection[str] = ()
) -> Callable[..., Any]:
    """Return a propagate/edge_update pre-hook that extends the source side of arguments by the halo rows.

    Args:
        path: Path of the layer.
        arguments: Arguments read at the source side of edges.
        context: The shared state.
        fusible: Whether a product with a sparse matrix may take the place of messages.
        single: Arguments that the layer's fused implementation takes as one tensor, not as a pair.
    """

    def hook(module: MessagePassing, inputs: tuple[Any, ...]) -> Any:
        if not context.is_distributed:
            return None
        edge_index, _, kwargs = inputs
        if isinstance(edge_index, EdgeIndex):
            edge_index = edge_index.as_tensor()  # made in the model, so it takes own nodes for all
        elif is_sparse(edge_index):
            _check_matrix(edge_index, context.relation, path)
        context.turn_to([edge_index])  # a layer may go through several edge types in turn
        relation = context.relation
        # PyG's generated propagate takes the far side from the first of a pair whatever the flow, so that is what layers mean.
        # One tensor has the rows of both ends, or of the sources if these are of another type.
        sides = {
            name: value if isinstance(value, (tuple, list)) else (value, None if relation.is_bipartite else value)
            for name, value in kwargs.items()
            if name in arguments
        }
        blocks = {name: sides[name][0] for name in arguments if name in sides and isinstance(sides[name][0], Tensor)}
        postponed = {name: value for name, value in kwargs.items() if isinstance(value, _Postponed)}
        if postponed:
            # What both calls read travels in one exchange; each then finds its rows.
            both = blocks | {k: v for value in postponed.values() for k, v in value.blocks.items()}
            context.extend_all(both, path, module.node_dim)
            kwargs = kwargs | {name: value.update() for name, value in postponed.items()}
        if fusible and not is_sparse(edge_index):
            matrix = aggregator(module, edge_index, kwargs, blocks, context)
            if matrix is not None:
                # The product itself exchanges rows, and multiplies own ones meanwhile.
                (context.product_argument,) = blocks
                pairs = {name: (sides[name][0] if name in single else sides[name]) for name in blocks}
                return matrix.own.forward, None, {**kwargs, **pairs}
        extended = dict(kwargs)
        along = module.flow == "source_to_target"
        for name, rows in context.extend_all(blocks, path, module.node_dim).items():
            # The Python propagate, which serves layers against the flow, takes it from the second.
            own = _target_rows(sides[name][1], rows, relation, module.node_dim)
            extended[name] = (rows, own) if along else (own, rows)
        if fusible and is_sparse(edge_index) and module.fuse:
            return edge_index, None, {name: rows[0] if name in single else rows for name, rows in extended.items()}
        return edge_index, relation.size if along else relation.size[::-1], extended

    return hook


def _target_rows(given: Any, extended: Tensor, relation: Relation, dim: int) -> Any:
    """Return the target side of an argument: of a table of all nodes the rows of own ones, anything else as it is."""
    if not isinstance(given, torch.nn.Parameter) or given.size(dim) == relation.num_targets:
        return given
    return extended.narrow(dim, 0, relation.num_targets)
