"""Time of a training step on several hosts with slow links: what waits for the wire, and what hides it.

    sudo python benchmarks/overlap.py --hosts 4 --rates 200mbit 100mbit 50mbit

Hosts are network namespaces of this machine, each with a link of the given rate to a switch. A step without a limit on the
rate takes the time of computation, C; the bytes that a host hands to its link over the rate are the time of the wire, W. A
synchronous step is predicted to take C + W, an asynchronous one max(C, W); both add what is never hidden, the gradients of
parameters. All hosts share this machine's cores, so C is that of the shared machine and only ratios mean anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the hosts of the tests
sys.path.insert(0, str(Path(__file__).parent))  # on a host this is a module

import lightning as L
import torch.distributed as dist
from rich.table import Table
from shared import make_console, make_trainer

from lightning_gnncomm import GraphDataModule, HaloStrategy, NodeClassifier
from tests.lab.hosts import Hosts

SCHEMES: dict[str, dict[str, Any]] = {
    "halo": {"codec": "identity", "schedule": "sync"},
    "identity, async": {"codec": "identity", "schedule": "async"},
    "sylvie_sync": {"codec": "one_bit", "schedule": "sync"},
    "sylvie_async": {"codec": "one_bit", "schedule": "async"},
}
WARM_UP = 3


class Clock(L.Callback):
    """Keeps the duration of every step, from start to start."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.starts.append(time.perf_counter())

    def seconds(self) -> float:
        """Return the median duration, without the first steps."""
        steps = [after - before for before, after in zip(self.starts, self.starts[1:], strict=False)]
        return statistics.median(steps[WARM_UP:])


def fit(scheme: str, arguments: argparse.Namespace, folder: str) -> dict[str, float]:
    """Train on this host and return the seconds a step takes, and the bytes that leave the host in it."""
    L.seed_everything(0, verbose=False)
    clock, strategy = Clock(), HaloStrategy(**SCHEMES[scheme])
    trainer = make_trainer(
        strategy, 1, num_nodes=arguments.hosts, max_epochs=arguments.steps, callbacks=[clock], limit_val_batches=0
    )
    data = GraphDataModule(arguments.graph, partition="random", root=folder, progress=False)
    model = NodeClassifier("GCN", hidden_channels=arguments.hidden, num_layers=arguments.layers)
    trainer.fit(model, datamodule=data)
    halo = strategy.traffic.total()
    return {
        "seconds": clock.seconds(),
        "halo_bytes": halo.sent_bytes / arguments.steps,
        "parameter_bytes": strategy.gradient_traffic.sent_bytes / arguments.steps * 2 * (1 - 1 / arguments.hosts),
        "wait": halo.wait_seconds / arguments.steps,
        "hidden": halo.hidden_seconds / arguments.steps,
    }


def on_host(arguments: argparse.Namespace) -> None:
    """Measure every scheme on this host."""
    results = {scheme: fit(scheme, arguments, arguments.folder) for scheme in SCHEMES}
    Path(arguments.folder, f"host{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def megabits(rate: str) -> float:
    """Return a rate of ``tc`` in bit/s.

    Example:
        >>> megabits("50mbit")
        50000000.0
    """
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def measure(hosts: Hosts, command: Sequence[str], folder: str, number: int) -> dict[str, dict[str, float]]:
    """Run all hosts and return, for each scheme, the numbers of the host with the largest."""
    hosts.run("benchmarks.overlap", [*command, "--folder", folder], timeout=1200)
    results = [json.loads(Path(folder, f"host{rank}.json").read_text()) for rank in range(number)]
    return {
        scheme: {name: max(result[scheme][name] for result in results) for name in results[0][scheme]}
        for scheme in SCHEMES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", nargs="+", default=["200mbit", "100mbit", "50mbit"], help="as tc writes them")
    parser.add_argument("--graph", default="rmat:scale=13,edge_factor=16")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        on_host(arguments)
        return
    command = [f"--{name}={getattr(arguments, name)}" for name in ("hosts", "graph", "hidden", "layers", "steps")]
    hosts = Hosts(None, arguments.hosts)
    try:
        with tempfile.TemporaryDirectory() as folder:
            computed = measure(hosts, command, folder, arguments.hosts)
            console = make_console()
            for rate in arguments.rates:
                hosts.set_rate(rate)
                console.print(table(rate, computed, measure(hosts, command, folder, arguments.hosts)))
    finally:
        hosts.close()


def table(rate: str, computed: dict[str, dict[str, float]], measured: dict[str, dict[str, float]]) -> Table:
    """Return measured and predicted steps at one rate."""
    shown = Table(title=f"A training step at {rate}, in seconds")
    for name in (
        "Scheme",
        "C",
        "W",
        "Predicted",
        "Measured",
        "Measured / predicted",
        "Waited",
        "Hidden",
        "halo / this",
    ):
        shown.add_column(name, justify="left" if name == "Scheme" else "right")
    for scheme, values in measured.items():
        c = computed[scheme]["seconds"]
        wire, parameters = (8 * values[name] / megabits(rate) for name in ("halo_bytes", "parameter_bytes"))
        is_late = SCHEMES[scheme]["schedule"] == "async"
        predicted = (max(c, wire) if is_late else c + wire) + parameters
        shown.add_row(
            scheme,
            f"{c:.3f}",
            f"{wire + parameters:.3f}",
            f"{predicted:.3f}",
            f"{values['seconds']:.3f}",
            f"{values['seconds'] / predicted:.2f}",
            f"{values['wait']:.3f}",
            f"{values['hidden']:.3f}",
            f"{measured['halo']['seconds'] / values['seconds']:.2f}x",
        )
    return shown


if __name__ == "__main__":
    main()
