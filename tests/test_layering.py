"""Who may import whom: the table of the package's layers, and which part alone may use which library."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_gnncomm

PACKAGE = "lightning_gnncomm"

# A module may import its own layer and those below. The package itself (its public names) stands at the top.
LAYERS = [
    {"kernels", "slots", "placement"},
    {"codecs", "graph"},
    {"comm"},
    {"halo"},
    {"pipeline", "aggregate", "planner"},
    {"strategies", "callbacks", "data", "models", "precision", "cli"},
    {"testing", "__main__", ""},
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

# Exceptions downwards: a planner returns data and carries nothing out.
FORBIDDEN = {"planner": {"comm", "halo"}}

# Libraries that only some modules may import; an entry covers everything inside it. testing.py starts real processes and holds
# toy models, and the package itself may look at anything.
ONLY = {
    "lightning": LAYERS[5] | LAYERS[6],
    "pytorch_lightning": LAYERS[5] | LAYERS[6],
    "torch.distributed": {"comm"} | LAYERS[6],
    "torch_geometric.nn": {
        *("halo.adjacency", "halo.attach", "halo.attention", "halo.interceptors", "halo.labels", "halo.norms"),
        *("halo.partial", "halo.relation", "halo.semantic", "halo.sparse", "models"),
    }
    | LAYERS[6],
    "triton": {"kernels"},
    "ctypes": {"kernels"},
}


def is_inside(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope}.")


def imported_names(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """Return the full names that one node imports; ``from a import b`` gives ``a.b``, since ``b`` may be a module."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=base, names=names, level=level):
            parents = module.split(".")
            parents = parents[: len(parents) - level + is_package] if level else []
            return [".".join([*parents, *filter(None, [base]), alias.name]) for alias in names]
        case ast.Attribute() if ast.unparse(node) == "torch.distributed":
            return ["torch.distributed"]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            return [name] if ast.unparse(function).split(".")[-1] in ("import_module", "__import__") else []
    return []


def imports_of(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of everything a module imports, also in functions and by constant strings."""
    for node in ast.walk(tree):
        for name in imported_names(node, module, is_package):
            yield getattr(node, "lineno", 0), name


def why_not(importer: str, imported: str) -> str | None:
    """Say what forbids ``importer`` (its name inside the package, ``""`` for the package itself) to import a full name."""
    part = importer.partition(".")[0]
    for library, allowed in ONLY.items():
        if is_inside(imported, library) and not any(
            importer == "" if a == "" else is_inside(importer, a) for a in allowed
        ):
            return f"only {sorted(allowed - {''})} may import {library}"
    if not is_inside(imported, PACKAGE):
        return None
    target = imported.removeprefix(PACKAGE).removeprefix(".").partition(".")[0]
    target = target if target in RANK else ""  # a public name of the package
    if RANK[target] > RANK[part]:
        return f"{target or 'the package itself'} lies above {part}"
    if target in FORBIDDEN.get(part, set()):
        return f"{part} must not use {target}"
    return None


def violations(root: Path) -> list[str]:
    """Check every module below ``root``, the package's folder."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        is_package = path.name == "__init__.py"
        names = relative.parent.parts if is_package else relative.with_suffix("").parts
        importer = ".".join(names)
        if (names or ("",))[0] not in RANK:
            found.append(f"{relative}: in none of the layers, add it to the table")
            continue
        module = ".".join((PACKAGE, *names))
        for line, imported in imports_of(ast.parse(path.read_text(encoding="utf-8")), module, is_package):
            reason = why_not(importer, imported)
            if reason is not None:
                found.append(f"{relative}:{line} imports {imported}: {reason}")
    return found


def test_the_package_keeps_its_layers():
    assert violations(Path(lightning_gnncomm.__file__).parent) == []


# --- the check itself -------------------------------------------------------------------------------------------------


def check(tmp_path: Path, module: str, source: str) -> list[str]:
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return violations(tmp_path)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("codecs/one_bit.py", "from lightning_gnncomm import kernels"),
        ("codecs/one_bit.py", "from lightning_gnncomm.codecs.base import Codec"),
        ("codecs/one_bit.py", "from .base import Codec\nfrom ..slots import Slot\nfrom .. import kernels"),
        ("codecs/__init__.py", "from . import base\nfrom .base import Codec\nfrom ..slots import Slot"),
        ("comm/wire.py", "import torch\nimport torch.distributed as dist\ntorch.distributed.barrier()"),
        ("halo/attach.py", "from torch_geometric.nn.conv import MessagePassing"),
        ("halo/source.py", "from lightning_gnncomm.comm.wire import Wire"),
        ("strategies/halo.py", "import lightning.pytorch as pl\nfrom lightning_gnncomm.halo import attach"),
        ("planner/solve.py", "from lightning_gnncomm.graph.plan import HaloPlan"),
        ("graph/store.py", "from torch_geometric.data import Data\nimport lightning_utilities"),
        ("testing.py", "import torch.distributed\nimport lightning\nfrom lightning_gnncomm.strategies import halo"),
        ("__init__.py", "import lightning\nfrom lightning_gnncomm.strategies.halo import HaloStrategy"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, module: str, source: str):
    assert check(tmp_path, module, source) == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("kernels/ops.py", "from lightning_gnncomm.codecs.base import Codec", "codecs lies above kernels"),
        ("kernels/ops.py", "from lightning_gnncomm import codecs", "codecs lies above kernels"),
        ("kernels/ops.py", "from .. import codecs", "codecs lies above kernels"),
        ("kernels/__init__.py", "from ..codecs.base import Codec", "codecs lies above kernels"),
        ("codecs/base.py", "def f():\n    import lightning_gnncomm.comm.wire", "comm lies above codecs"),
        ("codecs/base.py", "from lightning_gnncomm import HaloStrategy", "the package itself lies above codecs"),
        ("comm/wire.py", "import importlib\nimportlib.import_module('lightning_gnncomm.halo')", "halo lies above comm"),
        ("halo/source.py", "from lightning_gnncomm.testing import run_ranks", "testing lies above halo"),
        ("planner/solve.py", "from lightning_gnncomm.comm import wire", "planner must not use comm"),
        ("planner/solve.py", "from ..halo.exchange import exchange", "planner must not use halo"),
        ("halo/attach.py", "import lightning", "may import lightning"),
        ("graph/store.py", "from lightning.pytorch import LightningDataModule", "may import lightning"),
        ("pipeline/stage.py", "import pytorch_lightning as pl", "may import pytorch_lightning"),
        ("halo/exchange.py", "import torch.distributed as dist", "may import torch.distributed"),
        ("halo/exchange.py", "from torch import distributed", "may import torch.distributed"),
        ("halo/exchange.py", "from torch.distributed.nn import functional", "may import torch.distributed"),
        ("halo/exchange.py", "import torch\ntorch.distributed.barrier()", "may import torch.distributed"),
        (
            "strategies/halo.py",
            "if TYPE_CHECKING:\n    from torch.distributed import Work",
            "may import torch.distributed",
        ),
        ("halo/exchange.py", "from torch_geometric.nn import GCNConv", "may import torch_geometric.nn"),
        ("halo/exchange.py", "from torch_geometric import nn", "may import torch_geometric.nn"),
        ("codecs/k_bit.py", "import triton.language as tl", "may import triton"),
        ("engine.py", "", "in none of the layers"),
    ],
)
def test_what_is_forbidden_is_found(tmp_path: Path, module: str, source: str, expected: str):
    (found,) = check(tmp_path, module, source)
    assert expected in found
    assert found.startswith(module)


def test_every_module_is_looked_at(tmp_path: Path):
    check(tmp_path, "halo/deep/inside.py", "import lightning")
    check(tmp_path, "codecs/base.py", "import lightning\nimport torch.distributed")
    assert len(violations(tmp_path)) == 3
