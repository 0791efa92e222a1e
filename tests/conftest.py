"""Fixtures that tests of several parts of the package share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_gnncomm.testing import RankPool

DATA_FOLDER = Path(os.environ.get("GNNCOMM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_graph() -> Callable[[str], Path]:
    """A function from the name of a real graph to its npz file; the test is skipped where the file is not there."""

    def find(name: str) -> Path:
        path = DATA_FOLDER / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"needs the graph {name!r}: set GNNCOMM_DATA to a folder that holds {name}.npz")
        return path

    return find


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    """Two worker processes for all tests: starting them costs more than most tests."""
    with RankPool(2) as pool:
        yield pool
