"""One part in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data

from lightning_gnncomm.graph.adjacency import sparse_parts
from lightning_gnncomm.graph.plan import HaloPlan

__all__ = ["read_part", "write_part"]

_PLAN_TENSORS = ("send_index", "send_key", "recv_key")
_PLAN_NUMBERS = ("num_local", "num_global", "send_counts", "recv_counts")


def write_part(part: Data, path: Path) -> None:
    """Write a part; its tensors, and those of ``adj_t``, become tensors of the file, everything else JSON in the file's header."""
    plan: HaloPlan = part.halo
    values = {key: value for key, value in part.to_dict().items() if key != "halo"}
    tensors = {f"data/{key}": value for key, value in values.items() if isinstance(value, Tensor)}
    if "adj_t" in values:
        tensors |= {f"adj_t/{name}": inner for name, inner in sparse_parts(tensors.pop("data/adj_t")).items()}
    tensors |= {f"halo/{name}": getattr(plan, name) for name in _PLAN_TENSORS}
    header = {
        "order": list(values),
        "plain": {key: value for key, value in values.items() if not isinstance(value, Tensor)},
        "halo": {name: getattr(plan, name) for name in _PLAN_NUMBERS},
    }
    save_file(_separate(tensors), path, metadata={"part": json.dumps(header)})


def read_part(path: Path) -> Data:
    """Read a part that :func:`write_part` wrote."""
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads((file.metadata() or {})["part"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    if "adj_t" in header["order"]:
        starts, columns, values = (tensors[f"adj_t/{name}"] for name in ("crow_indices", "col_indices", "values"))
        numbers = header["halo"]
        size = (numbers["num_local"], numbers["num_local"] + sum(numbers["recv_counts"]), *values.shape[1:])
        tensors["data/adj_t"] = torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)
    part = Data()
    for key in header["order"]:
        part[key] = header["plain"][key] if key in header["plain"] else tensors[f"data/{key}"]
    plan: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in header["halo"].items()}
    plan |= {name: tensors[f"halo/{name}"] for name in _PLAN_TENSORS}
    part.halo = HaloPlan(**plan)
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
