"""One part in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lightning_gnncomm.graph.adjacency import sparse_parts
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.graph.typed import Graph, by_type, edge_types, empty_graph, node_types, stores, untyped

__all__ = ["read_part", "write_part"]

_PLAN_TENSORS = ("send_index", "send_key", "recv_key")
_PLAN_NUMBERS = ("num_local", "num_global", "send_counts", "recv_counts")
_PLAN_KEYS = ("first_key", "num_keys")  # of one type they are 0 and num_global


def write_part(part: Graph, path: Path) -> None:
    """Write a part; its tensors, and those of ``adj_t``, become tensors of the file, everything else JSON in the file's header.

    The file of a homogeneous part has the tensors ``data/KEY`` and ``halo/KEY``. In that of a heterogeneous one a number precedes
    the key, the place of its store (the graph's, those of the node types, those of the edge types) or of the plan's node type.
    """
    typed = None not in node_types(part)
    tensors: dict[str, Tensor] = {}
    orders, plains, plans = [], [], []
    for number, store in enumerate(stores(part).values()):
        values = {key: value for key, value in store.items() if key != "halo"}
        where = f"data/{number}" if typed else "data"
        tensors |= {f"{where}/{key}": value for key, value in values.items() if isinstance(value, Tensor)}
        orders.append(list(values))
        plains.append({key: value for key, value in values.items() if not isinstance(value, Tensor)})
    if "data/adj_t" in tensors:
        tensors |= {f"adj_t/{name}": inner for name, inner in sparse_parts(tensors.pop("data/adj_t")).items()}
    for number, plan in enumerate(by_type(part, part.halo).values()):
        where = f"halo/{number}" if typed else "halo"
        tensors |= {f"{where}/{name}": getattr(plan, name) for name in _PLAN_TENSORS}
        plans.append({name: getattr(plan, name) for name in (*_PLAN_NUMBERS, *(_PLAN_KEYS if typed else ()))})
    header: dict[str, Any] = {"order": orders[0], "plain": plains[0], "halo": plans[0]} if not typed else {
        "order": orders, "plain": plains, "halo": plans, "node_types": node_types(part), "edge_types": edge_types(part)
    }  # fmt: skip
    save_file(_separate(tensors), path, metadata={"part": json.dumps(header)})


def read_part(path: Path) -> Any:
    """Read a part that :func:`write_part` wrote."""
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads((file.metadata() or {})["part"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    if any(name.startswith("adj_t/") for name in tensors):
        starts, columns, values = (tensors[f"adj_t/{name}"] for name in ("crow_indices", "col_indices", "values"))
        numbers = header["halo"]
        size = (numbers["num_local"], numbers["num_local"] + sum(numbers["recv_counts"]), *values.shape[1:])
        tensors["data/adj_t"] = torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)
    typed = "node_types" in header
    part = empty_graph(header["node_types"], header["edge_types"]) if typed else empty_graph()
    orders, plains, halos = (header[name] if typed else [header[name]] for name in ("order", "plain", "halo"))
    for number, (store, order, plain) in enumerate(zip(stores(part).values(), orders, plains, strict=True)):
        where = f"data/{number}" if typed else "data"
        for key in order:
            store[key] = plain[key] if key in plain else tensors[f"{where}/{key}"]
    plans = {}
    for number, (name, numbers) in enumerate(zip(node_types(part), halos, strict=True)):
        where = f"halo/{number}" if typed else "halo"
        plan: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in numbers.items()}
        plans[name] = HaloPlan(**plan, **{key: tensors[f"{where}/{key}"] for key in _PLAN_TENSORS})
    part.halo = untyped(plans)
    return part


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors of which no two share memory, as the format wants them."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().as_subclass(torch.Tensor).contiguous()
        where = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if where in seen else tensor
        seen.add(where)
    return separate
