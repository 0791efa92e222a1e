"""Names of what benchmarks compare, and the strategies they stand for.

A scheme is ``one_process``, a registered strategy (``halo``, ``sylvie_sync``, ...), ``pipegcn``, or ``CODEC/SCHEDULE`` with
``/DRIFT_BOUND`` if the guard is on: ``one_bit/async``, ``delta_sign/sync``, ``one_bit/10`` (every tenth step waits),
``one_bit/adaptive/0.5``.
"""

from __future__ import annotations

import copy
from typing import Any

from lightning_gnncomm import Asynchronous, HaloStrategy
from lightning_gnncomm.codecs import CODECS
from lightning_gnncomm.comm.schedule import SCHEDULES, Schedule, resolve_schedule
from lightning_gnncomm.strategies.registry import PRESETS

SINGLE, HALO = "one_process", "halo"
NAMED: dict[str, dict[str, Any]] = PRESETS | {"pipegcn": {"codec": "identity", "schedule": "async"}}
"""Arguments of HaloStrategy by name."""


def arguments_of(scheme: str) -> dict[str, Any]:
    """Return the arguments of HaloStrategy of a scheme, made anew since schedules and codecs remember.

    Raises:
        ValueError: If it is no scheme; the message says how one is written.
    """
    if scheme in NAMED:
        return copy.deepcopy(NAMED[scheme])
    codec, _, rest = scheme.partition("/")
    try:
        if codec in CODECS and rest:
            return {"codec": codec, "schedule": _schedule(*rest.split("/"))}
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected a schedule after the codec in {scheme!r}: {error}") from error
    raise ValueError(
        f"Expected {SINGLE!r}, one of {sorted(NAMED)}, or CODEC/SCHEDULE[/DRIFT_BOUND] with a codec of {sorted(CODECS)} and "
        f"'sync', 'async', 'adaptive' or a number of steps, got {scheme!r}."
    )


def _schedule(name: str, drift_bound: str | None = None) -> Schedule:
    if drift_bound is None and name in SCHEDULES:
        return resolve_schedule(name)
    refresh_every: Any = {"async": None, "adaptive": "adaptive"}.get(name, name)
    if refresh_every not in (None, "adaptive"):
        refresh_every = int(refresh_every)
    return Asynchronous(refresh_every, drift_bound=None if drift_bound is None else float(drift_bound))


def make_strategy(scheme: str, seed: int) -> HaloStrategy | str:
    """Return what a Trainer takes, with a schedule of its own."""
    if scheme == SINGLE:
        return "auto"
    arguments = arguments_of(scheme)
    return HaloStrategy(arguments.pop("codec"), resolve_schedule(arguments.pop("schedule")), seed=seed, **arguments)
