"""The data module that partitions a graph once and gives each rank its part."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch_geometric.data import Data, Dataset, HeteroData

from lightning_gnncomm.data.loader import PartLoader
from lightning_gnncomm.graph.adjacency import with_adjacency
from lightning_gnncomm.graph.features import GraphFacts, prepare_graph
from lightning_gnncomm.graph.folder import MANIFEST
from lightning_gnncomm.graph.partition import trivial_part
from lightning_gnncomm.graph.sources import cache_root, load_graph, single_graph
from lightning_gnncomm.graph.store import describe_source, load_part, partition_and_store, read_manifest
from lightning_gnncomm.graph.typed import Graph

__all__ = ["GraphDataModule"]


class GraphDataModule(LightningDataModule):
    """Partitions a graph once and loads on each rank only its part.

    The same part serves training, validation, test and prediction; its masks tell them apart. On one rank the part is the whole
    graph and nothing is stored.

    Args:
        data: A ``Data`` or ``HeteroData``, a PyG dataset of one graph, a name for
            :func:`~lightning_gnncomm.graph.sources.load_graph`, or a partition folder. A graph (or node type) without ``x`` keeps
            having none unless ``add_features`` is set.
        num_parts: Number of parts, the trainer's number of ranks by default.
        partition: ``"metis"``, ``"random"``, or the part of each node ``[N]``, of a heterogeneous graph by node type.
        balance: What to give the parts equal amounts of: ``"nodes"``, ``"train"``, ``"edges"`` or several.
        seed: Seed of the partitioning.
        root: Folder for partitions and downloads; ``$GNNCOMM_CACHE`` or ``~/.cache/lightning_gnncomm`` by default.
        normalize_features: Divide each row of ``x`` by its sum; of a heterogeneous graph in all node types or those named.
        split: Which of several splits ``[N, K]`` to use as masks.
        add_features: For a graph (or node types) without ``x``: ``"degree"`` or ``"constant"``.
        progress: Whether rank 0 shows progress and the quality of a new partition.
        layout: ``"coo"`` leaves the edges in ``edge_index``. ``"csr"`` adds ``adj_t`` beside it, a ``torch.sparse`` CSR matrix
            ``[n, n + H]`` from own and halo nodes to own nodes with ``edge_weight`` as its values, for models called as
            ``model(batch.x, batch.adj_t)``. It is built from the part at each start and not stored.

    Raises:
        ValueError: If ``layout`` is unknown. From ``setup``, on all ranks alike, if a partition folder has not one part per rank,
            ranks hold different partitions, the strategy does not exchange halo rows, or ``edge_weight`` has several columns where
            they shall be values of a matrix.

    Example:
        >>> module = GraphDataModule("sbm:nodes=100")
        >>> module.setup("fit")
        >>> module.part.num_nodes, module.num_classes
        (100, 4)
    """

    def __init__(
        self,
        data: Data | HeteroData | Dataset | str | Path = "digits",
        num_parts: int | None = None,
        partition: str | Tensor | Mapping[str, Tensor] = "metis",
        balance: str | Sequence[str] = "nodes",
        seed: int = 0,
        root: str | Path | None = None,
        normalize_features: bool | list[str] = False,
        split: int | None = None,
        add_features: str | None = None,
        progress: bool = True,
        layout: Literal["coo", "csr"] = "coo",
    ) -> None:
        super().__init__()
        if layout not in ("coo", "csr"):
            raise ValueError(f"Expected layout to be 'coo' or 'csr', got {layout!r}.")
        self.source: Graph | str | Path = data if isinstance(data, (Graph, str, Path)) else single_graph(data)
        self.num_parts = num_parts
        self.partition, self.balance, self.seed = partition, balance, seed
        self.root = root
        self.normalize_features, self.split, self.add_features = normalize_features, split, add_features
        self.progress, self.layout = progress, layout
        self.part: Graph | None = None
        """This rank's part between ``setup`` and ``teardown``, on the strategy's device."""
        self._facts: GraphFacts | None = None
        self._folder: Path | None = None
        self._failure: Exception | None = None

    @property
    def num_features(self) -> Any:
        """Features per node, 0 without ``x``; of a heterogeneous graph a dict of one number per node type."""
        return self.facts.num_features

    @property
    def num_classes(self) -> Any:
        """Classes, or targets per node if they are several; a dict by node type if several types have targets."""
        return self.facts.num_classes

    @property
    def multi_label(self) -> bool:
        """Whether a node has several targets."""
        return self.facts.multi_label

    @property
    def facts(self) -> GraphFacts:
        """Facts of the whole graph, known without loading it once it was described or partitioned."""
        if self._facts is None:
            self._facts = describe_source(self.source, root=self.root, split=self.split, add_features=self.add_features)
        return self._facts

    def prepare_data(self) -> None:
        """Partition and store the graph if that was not done before; Lightning calls it on one rank of each node.

        With several ranks a failure is kept for ``setup``, which raises it on all of them: others wait for this rank.
        """
        self._failure = None
        if self._world_size == 1 and self._wanted_parts == 1:
            return
        try:
            self._folder = self._find_or_store()
        except Exception as error:
            if self._world_size == 1:
                raise
            self._failure = error

    def setup(self, stage: str | None = None) -> None:
        """Load this rank's part.

        Args:
            stage: Ignored; all stages use the same part.

        Raises:
            ValueError: See the class.
        """
        if self.part is not None:
            return
        if self._world_size == 1:
            part = self._load_alone()
        else:
            self._check_strategy()  # before the first collective
            part = self._load_together()
        if self.layout == "csr":
            part = with_adjacency(part)
        self.part = part if self.trainer is None else part.to(self.trainer.strategy.root_device)

    def teardown(self, stage: str | None = None) -> None:
        """Let go of the part."""
        self.part = None

    def train_dataloader(self) -> PartLoader:
        """Return a loader of the part."""
        return self._loader()

    def val_dataloader(self) -> PartLoader:
        """Return a loader of the part."""
        return self._loader()

    def test_dataloader(self) -> PartLoader:
        """Return a loader of the part."""
        return self._loader()

    def predict_dataloader(self) -> PartLoader:
        """Return a loader of the part."""
        return self._loader()

    @property
    def _world_size(self) -> int:
        return 1 if self.trainer is None else self.trainer.world_size

    @property
    def _wanted_parts(self) -> int:
        return self._world_size if self.num_parts is None else self.num_parts

    @property
    def _stored_folder(self) -> Path | None:
        """The folder if ``data`` is a partition."""
        if isinstance(self.source, Graph) or not (Path(self.source) / MANIFEST).is_file():
            return None
        return Path(self.source)

    def _loader(self) -> PartLoader:
        if self.part is None:
            raise RuntimeError("Expected a part to load, there is none before setup(). Call setup('fit') first.")
        return PartLoader(self.part)

    def _find_or_store(self) -> Path:
        if self._stored_folder is not None:
            return self._stored_folder
        if self.trainer is not None:
            self._check_strategy()  # setup() raises the same, this spares the work before
            self._check_num_parts(self._wanted_parts, "num_parts")
        return partition_and_store(
            self.source,
            self._wanted_parts,
            root=self.root,
            method=self.partition,
            balance=self.balance,
            seed=self.seed,
            normalize_features=self.normalize_features,
            split=self.split,
            add_features=self.add_features,
            progress=self.progress and (self.trainer is None or self.trainer.is_global_zero),
        )

    def _load_alone(self) -> Graph:
        if self._stored_folder is not None:
            return self._load(self._stored_folder)
        self._check_num_parts(self._wanted_parts, "num_parts")
        graph = self.source if isinstance(self.source, Graph) else load_graph(self.source, root=self.root)
        return trivial_part(
            prepare_graph(
                graph,
                normalize_features=self.normalize_features,
                split=self.split,
                add_features=self.add_features,
            )
        )

    def _load_together(self) -> Graph:
        """Load a part on each rank, or raise the same error on each: a rank that raises alone leaves the others waiting."""
        assert self.trainer is not None
        strategy = self.trainer.strategy
        announced: Any = self._announcement() if self.trainer.is_global_zero else None
        wanted, failure = strategy.broadcast(announced, src=0)
        if failure is not None:
            raise failure
        part = None
        try:
            part = self._load_announced(wanted)
        except Exception as error:  # noqa: BLE001 - raised below, once all ranks know
            failure = _portable(error)
        if strategy.reduce_boolean_decision(failure is None, all=True):
            assert part is not None
            return part
        failures = [strategy.broadcast(failure, src=rank) for rank in range(self._world_size)]
        raise next(failure for failure in failures if failure is not None)

    def _announcement(self) -> tuple[dict[str, Any], Exception | None]:
        """Return what rank 0 tells the others: which partition it holds, or why it holds none."""
        try:
            if self._failure is not None:
                raise self._failure
            assert self._folder is not None, "prepare_data() has run on rank 0"
            manifest = read_manifest(self._folder)
            self._check_num_parts(manifest["num_parts"], str(self._folder))
        except Exception as error:  # noqa: BLE001 - raised on all ranks
            return {}, _portable(error)
        return {
            "name": self._folder.name,
            "fingerprint": manifest["fingerprint"],
            "settings": manifest["settings"],
        }, None

    def _load_announced(self, wanted: dict[str, Any]) -> Graph:
        if self._failure is not None:
            raise self._failure
        # A node may keep its cache elsewhere, so the folder's name counts and not its path.
        folder = self._stored_folder or cache_root(self.root) / wanted["name"]
        manifest = read_manifest(folder)
        for name in ("fingerprint", "settings"):
            if manifest[name] != wanted[name]:
                raise ValueError(
                    f"Expected the partition of rank 0 on all ranks, got another one in {folder}: {name} is {manifest[name]!r} "
                    f"there and {wanted[name]!r} on rank 0. Delete the older one, or share one folder between nodes."
                )
        return self._load(folder)

    def _load(self, folder: Path) -> Graph:
        manifest = read_manifest(folder)
        self._check_num_parts(manifest["num_parts"], str(folder))
        self._facts = GraphFacts(**manifest["facts"])
        return load_part(folder, 0 if self.trainer is None else self.trainer.global_rank)

    def _check_num_parts(self, num_parts: int, where: str) -> None:
        if num_parts == self._world_size:
            return
        raise ValueError(
            f"Expected one part per rank, got {num_parts} parts ({where}) for {self._world_size} ranks. "
            f"Use devices={num_parts} (over all nodes), or `gnncomm partition ... --parts {self._world_size}`."
        )

    def _check_strategy(self) -> None:
        assert self.trainer is not None
        strategy = self.trainer.strategy
        if self._world_size > 1 and not getattr(strategy, "exchanges_halos", False):
            raise ValueError(
                f"Expected a strategy that exchanges halo rows for {self._world_size} parts, got {type(strategy).__name__}. "
                "Use Trainer(strategy='halo') or another one of lightning_gnncomm."
            )


def _portable(error: Exception) -> Exception:
    """Return an error that other ranks can unpickle and raise."""
    kind = type(error)
    known = getattr(builtins, kind.__name__, None) is kind
    return kind(str(error)) if known else RuntimeError(f"{kind.__name__}: {error}")
