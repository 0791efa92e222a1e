"""Test accuracy, epochs to a loss, bytes and drift of several schemes of exchanging halos, over several seeds.

    python benchmarks/accuracy.py npz:PATH/cora.npz --parts 8 --seeds 10 --normalize-features
    python benchmarks/accuracy.py npz:PATH/cora.npz --schemes halo one_bit/async one_bit/10 --models GCN GAT --out runs.jsonl

All schemes of a seed start from the same parameters and drop the same positions on as many ranks, so results are compared in
pairs. The measure of a run is that on the test nodes at the epoch of best validation measure (the first of several); that at the
last epoch is shown too. Validation is exact in every scheme. With ``--out`` finished runs are kept in a file and not repeated.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: all ranks share this machine's cores

import torch
from runs import Message, Results, Run, Setting, train
from schemes import HALO, SINGLE, arguments_of
from shared import make_console, make_table, mean, quantile, spread, standard_error

from lightning_gnncomm.codecs.base import resolve_codec
from lightning_gnncomm.models.metrics import METRICS
from lightning_gnncomm.testing import RankPool

Runs: TypeAlias = dict[str, dict[int, Run]]  # by scheme and seed

DEFAULT_SCHEMES = (SINGLE, HALO, "sylvie_sync", "sylvie_async")
BY_AUROC = ("minesweeper", "questions", "tolokers")  # two classes of unequal size; published so
TITLES = {"best": "at best validation", "last": "at last epoch"}
MARGIN = 1.01  # of the least loss of `halo`


def run_all(
    settings: Sequence[Setting], schemes: Sequence[str], seeds: Sequence[int], results: Results, max_minutes: float
) -> None:
    """Train what is not finished, seed by seed so that a shorter table is complete; ranks are started once."""
    todo = [
        key
        for key in ((setting, scheme, seed) for setting in settings for seed in seeds for scheme in schemes)
        if results.get(*key) is None
    ]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pools = {size: stack.enter_context(RankPool(size)) for size in {1, *(setting.parts for setting in settings)}}
        for number, (setting, scheme, seed) in enumerate(todo):
            minutes = (time.monotonic() - start) / 60
            if minutes >= max_minutes:
                print(f"Stopped after {minutes:.1f} minutes with {len(todo) - number} runs left.", flush=True)
                return
            pool = pools[1 if scheme == SINGLE else setting.parts]
            run = pool.run(train, setting, f"{folder}/{setting.name}", scheme, seed, timeout=3600)[0]
            results.add(setting, scheme, seed, run)
            print(
                f"[{number + 1}/{len(todo)}] {setting.name}, {setting.model}, seed {seed}, {scheme}: test {run.best:.4f}, "
                f"loss {run.best_loss:.4f}, fit {run.seconds:.1f} s",
                flush=True,
            )


def measures(runs: Runs) -> Iterator[list[str]]:
    """Yield accuracy of each scheme, and its difference to ``halo`` seed by seed."""
    yield ["scheme", "seeds"] + [text for title in TITLES.values() for text in (title, "- `halo`, paired")]
    for scheme, by_seed in runs.items():
        row = [f"`{scheme}`", str(len(by_seed))]
        for name in TITLES:
            row.append(spread([getattr(run, name) for run in by_seed.values()]))
            paired = differences(runs, scheme, name)
            row.append(spread(paired, sign="+") if paired and scheme != HALO else "")
        yield row


def differences(runs: Runs, scheme: str, name: str) -> list[float]:
    """Return a scheme's measure less that of ``halo`` for every seed that both have."""
    exact = runs.get(HALO, {})
    return [getattr(run, name) - getattr(exact[seed], name) for seed, run in runs[scheme].items() if seed in exact]


def convergence(runs: Runs) -> Iterator[list[str]]:
    """Yield the least loss of each scheme, and when its loss first reaches that of ``halo`` plus a margin, same seed."""
    yield ["scheme", "least validation loss", "reached by", "epochs until", "MB until", "bytes an epoch", "fit (s)"]
    exact = runs.get(HALO, {})
    for scheme, by_seed in runs.items():
        compared = {seed: run for seed, run in by_seed.items() if seed in exact}
        firsts = [run.first_below(MARGIN * exact[seed].best_loss) for seed, run in compared.items()]
        reached = [point for point in firsts if point is not None]
        yield [
            f"`{scheme}`",
            spread([run.best_loss for run in by_seed.values()]),
            f"{len(reached)} of {len(firsts)}",
            f"{mean([point.epoch for point in reached]):.1f}" if reached else "not reached",
            f"{mean([point.nbytes for point in reached]) / 1e6:.3f}" if reached else "",
            f"{mean([run.bytes_per_epoch for run in by_seed.values()]):,.0f}",
            f"{mean([run.seconds for run in by_seed.values()]):.1f}",
        ]


def traffic(runs: Runs, epochs: int) -> Iterator[list[str]]:
    """Yield the bytes of each scheme beside those predicted."""
    yield ["scheme", "message widths F", "measured", "predicted", "ratio to halo", "predicted ratio"]
    first = {scheme: next(iter(by_seed.values())) for scheme, by_seed in runs.items() if scheme != SINGLE}
    exact = first.get(HALO)
    for scheme, run in first.items():
        predicted = predicted_bytes(run.rows, run.messages, epochs, scheme)
        ratios = ["", ""]
        if exact is not None:
            exactly = predicted_bytes(exact.rows, exact.messages, epochs, HALO)
            ratios = [f"{exact.bytes_per_epoch / run.bytes_per_epoch:.2f}x", f"{exactly / predicted:.2f}x"]
        widths = " ".join(str(message.width) for message in run.messages)
        yield [f"`{scheme}`", widths, f"{run.bytes_per_epoch:,.0f}", f"{predicted:,.0f}", *ratios]


def predicted_bytes(rows: int, messages: Sequence[Message], epochs: int, scheme: str) -> float:
    """Bytes an epoch of all ranks: what a row of F values takes with the codec, for each row of each message."""
    codec = resolve_codec(arguments_of(scheme)["codec"])
    total = 0.0
    for width, exchanges in messages:
        row_bytes = codec.row_nbytes(width, torch.float32)
        assert row_bytes is not None, scheme
        total += rows * row_bytes * exchanges / epochs
    return total


def staleness(runs: Runs) -> Iterator[list[str]]:
    """Yield how far the rows in use drift from the true ones over time, and what schedules did about it."""
    yield ["scheme", "message", "drift: first", "median", "95 %", "last", "largest", "refreshed", "synchronous"]
    for scheme, by_seed in runs.items():
        for message in dict.fromkeys(name for run in by_seed.values() for name in run.drifts):
            # Some schemes never use a message, and short runs end before its first window.
            seen = [run for run in by_seed.values() if message in run.drifts]
            drifts = [value for run in seen for value in run.drifts[message]]
            kinds = [what for run in seen for _, what, name, _ in run.decisions if name == message]
            numbers = [
                mean([run.drifts[message][0] for run in seen]),
                quantile(drifts, 0.5),
                quantile(drifts, 0.95),
                mean([run.drifts[message][-1] for run in seen]),
                max(drifts),
            ]
            decisions = [str(kinds.count("refresh")), f"{kinds.count('synchronous')} of {len(seen)}"]
            yield [f"`{scheme}`", message, *(f"{number:.2f}" for number in numbers), *decisions]


def errors(runs: Runs) -> Iterator[list[str]]:
    """Yield the relative error of the rows in use by quarter of the run, and how many times smaller it is than plain one bit's."""
    yield ["scheme", "message", *(f"error, quarter {number}" for number in range(1, 5)), "last, one_bit over it"]
    for scheme, by_seed in runs.items():
        codec, _, schedule = scheme.partition("/")
        plain = runs.get(f"one_bit/{schedule}", {}) if codec != "one_bit" else {}
        for message in dict.fromkeys(name for run in by_seed.values() for name in run.errors):
            quarters = quarter_means(by_seed, message)
            beside = quarter_means(plain, message)
            ratio = f"{beside[-1] / quarters[-1]:.1f}x" if beside and quarters and quarters[-1] else ""
            if quarters:
                yield [f"`{scheme}`", message, *(f"{quarter:.4f}" for quarter in quarters), ratio]


def quarter_means(by_seed: Mapping[int, Run], message: str) -> list[float]:
    """Return a message's error in each quarter of its windows, as a mean over seeds; nothing if there are too few windows."""
    series = [run.errors.get(message, []) for run in by_seed.values()]
    series = [values for values in series if len(values) >= 4]
    cuts = [(len(values) * q // 4, len(values) * (q + 1) // 4) for values in series[:1] for q in range(4)]
    return [mean([mean(values[start:stop]) for values in series]) for start, stop in cuts]


def decided(runs: Runs) -> Iterator[list[str]]:
    """Yield the share of messages that were waited for, and how often intervals changed."""
    yield ["scheme", "waited for", "intervals changed", "last change"]
    for scheme, by_seed in runs.items():
        if scheme == SINGLE:
            continue
        changes = [[why for _, what, _, why in run.decisions if what == "interval"] for run in by_seed.values()]
        lasts = [change[-1] for change in changes if change]
        waited = mean([run.waited for run in by_seed.values()])
        yield [
            f"`{scheme}`",
            f"{100 * waited:.0f} %",
            f"{mean([len(c) for c in changes]):.1f}",
            lasts[0] if lasts else "",
        ]


def show(setting: Setting, runs: Runs) -> None:
    """Print everything measured."""
    console = make_console()
    console.print(
        f"\n{setting.name}, {setting.parts} parts; {setting.layers}-layer {setting.model}, {setting.hidden} hidden, dropout "
        f"{setting.dropout}, {setting.epochs} epochs. Measure: {setting.metric}. Mean +- standard error over seeds.",
        soft_wrap=True,
    )
    tables: list[Callable[[Runs], Iterator[list[str]]]] = [measures, convergence]
    if setting.parts > 1:
        tables += [lambda runs: traffic(runs, setting.epochs), staleness, errors, decided]
    for rows in tables:
        console.print(make_table(rows(runs)), soft_wrap=True)
    for scheme, by_seed in runs.items():
        console.print(f"{scheme}, by seed: {' '.join(f'{run.best:.4f}' for run in by_seed.values())}", soft_wrap=True)
    exact = list(runs.get(HALO, {}).values())
    for name, title in TITLES.items():
        if len(exact) > 1:
            error = standard_error([getattr(run, name) for run in exact])
            console.print(f"Standard error of {HALO} alone, {title}: {error:.5f}")


def parse() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "graphs", nargs="+", help="names as GraphDataModule takes them, e.g. npz:PATH/cora.npz or digits"
    )
    parser.add_argument("--schemes", nargs="+", default=list(DEFAULT_SCHEMES), help="see benchmarks/schemes.py")
    parser.add_argument("--models", nargs="+", default=["GCN"], help="e.g. GCN GraphSAGE GAT")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--validate-every", type=int, default=5, help="epochs between validations")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--heads", type=int, default=4, help="attention heads of a GAT")
    parser.add_argument("--jk", choices=["cat", "last", "max", "lstm"], help="jumping knowledge of deep models")
    parser.add_argument("--normalize-features", action="store_true", help="divide each row of x by its sum")
    parser.add_argument(
        "--metric", choices=sorted(METRICS), help="by default auroc for tolokers and its kin, else accuracy"
    )
    parser.add_argument("--out", type=Path, help="JSON lines of finished runs, which are not repeated")
    parser.add_argument("--max-minutes", type=float, default=float("inf"), help="start no run after so long")
    return vars(parser.parse_args())


def main() -> None:
    options = parse()
    graphs, models, metric = (options.pop(name) for name in ("graphs", "models", "metric"))
    schemes, count, first = (options.pop(name) for name in ("schemes", "seeds", "first_seed"))
    results, max_minutes = Results(options.pop("out")), options.pop("max_minutes")
    for scheme in schemes:
        if scheme != SINGLE:
            arguments_of(scheme)  # a wrong name ends here, not after an hour
    settings = []
    for graph, model in product(graphs, models):
        setting = Setting(graph=graph, model=model, metric=metric or "accuracy", **options)
        settings.append(setting if metric or setting.name not in BY_AUROC else replace(setting, metric="auroc"))
    seeds = range(first, first + count)
    run_all(settings, schemes, seeds, results, max_minutes)
    for setting in settings:
        found = {scheme: {seed: results.get(setting, scheme, seed) for seed in seeds} for scheme in schemes}
        finished: Runs = {s: {k: run for k, run in by_seed.items() if run is not None} for s, by_seed in found.items()}
        finished = {scheme: by_seed for scheme, by_seed in finished.items() if by_seed}
        if finished:
            show(setting, finished)


if __name__ == "__main__":
    main()
