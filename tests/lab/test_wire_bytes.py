"""The kernel's count of bytes on a real link agrees with ours.

Two hosts train a few epochs and some more. What the longer training sent beyond the shorter one holds no set-up: it is what
an epoch sends. TCP, IP and Ethernet put 66 bytes before the data of each packet, acknowledgements are nothing but that; the
kernel counts packets too, so the data alone is known. Beside what is predicted it holds the few numbers by which ranks
agree on the loss weight and on what they log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.lab.fit_on_host import Measured
from tests.lab.hosts import Hosts, HostsUnavailableError

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(300)]

STRATEGIES = ("halo", "sylvie_sync")
SHORT, LONG = 4, 24
HEADER = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps
RANKS = 2
WIDTHS = (256, 8)  # of the rows exchanged: the hidden layer's, and as many as there are classes


class Epoch(NamedTuple):
    """What one host sends in an epoch."""

    on_wire: float
    packets: float
    halo: float
    gradient: float

    @property
    def data(self) -> float:
        """Bytes on the wire but for headers."""
        return self.on_wire - HEADER * self.packets

    @property
    def predicted(self) -> float:
        """Bytes counted by the package, with what a ring all-reduce sends of those handed to it."""
        return self.halo + self.gradient * 2 * (RANKS - 1) / RANKS


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts("200mbit")
    except HostsUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def epochs(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Epoch]]:
    folder = tmp_path_factory.mktemp("lab")
    hosts.run("tests.lab.fit_on_host", [str(folder), ",".join(STRATEGIES), f"{SHORT},{LONG}"], timeout=240)
    results = [json.loads((folder / f"host{rank}.json").read_text()) for rank in range(RANKS)]
    check_monitor(results)
    return {strategy: [difference(*result[strategy]) for result in results] for strategy in STRATEGIES}


def difference(short: dict[str, int], long: dict[str, int]) -> Epoch:
    """Return an epoch of what the longer training did beyond the shorter."""
    names = ("tx_bytes", "tx_packets", "halo_bytes", "gradient_bytes")
    return Epoch(*((long[name] - short[name]) / (LONG - SHORT) for name in names))


def check_monitor(results: list[dict[str, list[dict[str, int]]]]) -> None:
    """The callback shows what both hosts counted."""
    for strategy in STRATEGIES:
        for number in range(2):
            runs = [Measured(**result[strategy][number]) for result in results]
            assert {run.monitor_bytes for run in runs} == {sum(run.halo_bytes for run in runs)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_interface_counters_agree_with_ours(epochs: dict[str, list[Epoch]], strategy: str) -> None:
    for host, epoch in enumerate(epochs[strategy]):
        print(
            f"\n{strategy}, host {host}, an epoch: {epoch.on_wire:,.0f} bytes in {epoch.packets:,.1f} packets on the wire, "
            f"{epoch.data:,.0f} without headers; counted {epoch.predicted:,.0f} ({epoch.data / epoch.predicted - 1:+.2%})"
        )
        assert epoch.halo > 0.5 * epoch.predicted
        assert epoch.data == pytest.approx(epoch.predicted, rel=0.05)


def test_one_bit_changes_bytes_on_the_wire_as_the_formula_says(epochs: dict[str, list[Epoch]]) -> None:
    exact, one_bit = (sum(4 * width for width in WIDTHS), sum(4 + -(-width // 8) for width in WIDTHS))
    for dense, coded in zip(epochs["halo"], epochs["sylvie_sync"], strict=True):
        assert dense.halo / coded.halo == pytest.approx(exact / one_bit)
        # Gradients of parameters travel as before; halo rows are the rest.
        assert (dense.data - dense.gradient) / (coded.data - coded.gradient) == pytest.approx(exact / one_bit, rel=0.1)
