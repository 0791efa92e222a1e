"""Worker processes that all strategy tests share: starting them costs more than most tests."""

from collections.abc import Iterator

import pytest

from lightning_gnncomm.testing import RankPool


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool
