"""Which node goes to which part: METIS, at random, or as given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymetis
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_gnncomm.graph.check import check_assignments, check_graph
from lightning_gnncomm.graph.typed import Assignment, Graph, JointIds, joint_ids, node_types, stores, untyped

__all__ = ["BALANCES", "METHODS", "assign"]

METHODS = ("metis", "random")
"""Names of the ways to assign nodes to parts."""

BALANCES = ("nodes", "train", "edges")
"""Names of what parts can have equal amounts of."""

_METIS_LOCK = threading.Lock()  # METIS draws from the C library's one rand(): two calls at once would not repeat
_WEIGHT_SUM = 2**30  # METIS adds up integer weights


def assign(
    data: Graph,
    num_parts: int,
    method: str | Assignment = "metis",
    balance: str | Sequence[str] = "nodes",
    seed: int = 0,
) -> Any:
    """Assign each node of a graph to a part, the same way each time for the same seed.

    METIS minimises the communication volume, which is the number of halo rows, over the undirected graph without self-loops. The
    nodes of all types of a ``HeteroData`` are assigned together, over the edges of all types.

    Args:
        data: The whole graph, ``N`` nodes.
        num_parts: Number of parts ``P``; every part gets at least one node.
        method: ``"metis"``, ``"random"`` (equal sizes), or an assignment of shape ``[N]`` (a dict of one per node type for a
            ``HeteroData``), which is checked and returned.
        balance: What METIS gives the parts equal amounts of: ``"nodes"``, ``"train"`` (nodes of ``train_mask``, the others counting
            a tenth in all so that no part grows without bound) or ``"edges"`` (edges into a node, plus one). Several names balance
            the *sum* of their shares: pymetis passes METIS one weight per node, so the single amounts may differ more than the sum.
        seed: Seed, at least 0.

    Returns:
        Part of each node, shape ``[N]``, int64, in ``0..P-1``; for a ``HeteroData`` a dict of one such tensor per node type.

    Raises:
        ValueError: If there are fewer nodes than parts, a name is unknown, training nodes shall be balanced and there are none, or
            a given assignment is wrong.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
        >>> assign(path, 2).bincount().tolist()
        [2, 2]
    """
    graph = check_graph(data)
    if num_parts < 1:
        raise ValueError(f"Expected at least one part, got num_parts={num_parts}.")
    if not isinstance(method, str):
        return untyped(check_assignments(method, graph, num_parts))
    if method not in METHODS:
        raise ValueError(f"Expected a partition method of {list(METHODS)} or a tensor of part ids, got {method!r}.")
    if seed < 0:
        raise ValueError(f"Expected a seed of at least 0, got {seed}.")
    joint = joint_ids(graph)
    num_nodes = joint.node_start[-1]
    if num_nodes < num_parts:
        raise ValueError(
            f"Expected at least as many nodes as parts, got {num_nodes} nodes for {num_parts} parts. Use fewer devices."
        )
    names = [balance] if isinstance(balance, str) else list(balance)
    weight = _node_weight(graph, joint, names)
    if num_parts == 1:
        part = torch.zeros(num_nodes, dtype=torch.long)
    elif method == "metis":
        part = torch.from_numpy(_metis(joint, num_parts, weight, seed))
    elif weight is not None:
        raise ValueError(
            f"Expected balance='nodes' for random parts, got {names}. Use method='metis' to balance others."
        )
    else:
        part = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed)) % num_parts
    pieces = part.split(np.diff(joint.node_start).tolist())
    return untyped(dict(zip(node_types(graph), pieces, strict=True)))


def _metis(joint: JointIds, num_parts: int, weight: NDArray[np.int64] | None, seed: int) -> NDArray[np.int64]:
    adjacency = undirected_csr(joint.edge_index, joint.node_start[-1])
    index_type = pymetis.zero_copy_dtype()
    csr = pymetis.CSRAdjacency(adjacency.indptr.astype(index_type), adjacency.indices.astype(index_type))
    # The C library takes seeds 0 and 1 for the same.
    options = pymetis.Options(seed=seed % (2**31 - 2) + 1, objtype=int(pymetis.ObjType.VOL))
    weights = None if weight is None else weight.astype(index_type)
    with _METIS_LOCK:
        found = pymetis.part_graph(num_parts, csr, vweights=weights, recursive=False, options=options)
    part = np.asarray(found.vertex_part, dtype=np.int64)
    return _fill_empty_parts(part, num_parts, np.diff(adjacency.indptr))


def undirected_csr(edge_index: Tensor, num_nodes: int) -> Any:
    """Return a graph as METIS wants it, a scipy CSR matrix: both directions, no duplicates, no self-loops.

    Args:
        edge_index: Sources and destinations, shape ``[2, E]``.
        num_nodes: Number of nodes.
    """
    source, target = edge_index.detach().cpu().as_subclass(Tensor).numpy()
    keep = source != target
    if not keep.all():
        source, target = source[keep], target[keep]
    forward = sp.coo_array((np.ones(len(source), dtype=bool), (source, target)), shape=(num_nodes, num_nodes)).tocsr()
    backward = forward.T.tocsr()  # transposing sorts rows in linear time
    forward = backward.T.tocsr()
    return forward + backward


def _node_weight(graph: Graph, joint: JointIds, names: Sequence[str]) -> NDArray[np.int64] | None:
    """Return one integer weight per node, or None if all are equal."""
    unknown = [name for name in names if name not in BALANCES]
    if unknown or not names:
        raise ValueError(f"Expected balance to be one or several of {list(BALANCES)}, got {list(names)}.")
    if set(names) == {"nodes"}:
        return None
    shares = sum(_share(graph, joint, name) for name in names) / len(names)
    return np.maximum(np.rint(shares * _WEIGHT_SUM), 1).astype(np.int64)


def _share(graph: Graph, joint: JointIds, name: str) -> NDArray[np.float64]:
    """Return the share of the whole that each node stands for, by joint id; sums to one."""
    num_nodes = joint.node_start[-1]
    if name == "nodes":
        return np.full(num_nodes, 1 / num_nodes)
    if name == "edges":
        amount = 1.0 + np.bincount(joint.edge_index[1].numpy(), minlength=num_nodes)
        return np.asarray(amount / amount.sum())
    train = _train_share(graph)
    if not train.any():
        raise ValueError(
            "Expected training nodes to balance, got a graph without any in train_mask. Use balance='nodes'."
        )
    return np.asarray(0.9 * train / train.sum() + 0.1 / num_nodes)


def _train_share(graph: Graph) -> NDArray[np.float64]:
    """Return in how many of its splits each node is a training node, as a share, by joint id; 0 for types without a mask."""
    shares = []
    for name in node_types(graph):
        store = stores(graph)[name]
        mask = store.get("train_mask", torch.zeros(store.num_nodes, 1))
        columns = mask.unsqueeze(1) if mask.dim() == 1 else mask.flatten(1)
        shares.append(columns.detach().cpu().to(torch.float64).mean(dim=1))
    return torch.cat(shares).numpy()


def _fill_empty_parts(part: NDArray[np.int64], num_parts: int, degree: NDArray[Any]) -> NDArray[np.int64]:
    """Give each empty part the least connected node of the largest part: METIS leaves parts empty on small graphs."""
    sizes = np.bincount(part, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        members = np.flatnonzero(part == largest)
        part[members[degree[members].argmin()]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return part
