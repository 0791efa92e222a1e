"""Processes as ranks: real process groups, with every rank's traceback and an end in any case."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from typing_extensions import Self

__all__ = ["RankPool", "run_ranks"]

T = TypeVar("T")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _serve(rank: int, world_size: int, folder: str, port: int, pipe: Connection) -> None:
    """Run functions until told to stop. The environment is that of torchrun, so Lightning joins the group that is there."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "rank-pool",
    }
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    while (task := pipe.recv()) is not None:
        function, args = task
        try:
            pipe.send(("result", function(*args)))
        except BaseException:  # noqa: BLE001  # reported to the test
            pipe.send(("error", traceback.format_exc()))
    dist.barrier()
    dist.destroy_process_group()


class RankPool:
    """Processes that form one gloo group and run functions together, so that tests pay for their start once.

    A rank that fails or does not answer ends all of them; the next :meth:`run` starts new ones.

    Args:
        world_size: Number of processes.

    Example:
        >>> import torch.distributed as dist
        >>> with RankPool(2) as pool:
        ...     pool.run(dist.get_rank)
        [0, 1]
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        port = _free_port()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.world_size, self._folder.name, port, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def run(self, function: Callable[..., T], *args: Any, timeout: float = 120.0) -> list[T]:
        """Run ``function(*args)`` on every rank and return the results by rank.

        Args:
            function: A module-level function (it is pickled).
            *args: Its arguments, the same on every rank.
            timeout: Seconds after which all processes are ended.

        Raises:
            RuntimeError: If a rank raised (with its traceback), died or did not answer in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        try:
            return self._collect(time.monotonic() + timeout, timeout)
        except BaseException:
            self._kill()
            raise

    def _collect(self, deadline: float, timeout: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < self.world_size:
            waiting = {self._pipes[rank]: rank for rank in range(self.world_size) if rank not in results}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"Ranks {sorted(waiting.values())} did not answer within {timeout} seconds.")
            errors = {}
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    self._processes[rank].join()
                    kind, value = "error", f"It died with exit code {self._processes[rank].exitcode}."
                if kind == "error":
                    errors[rank] = value
                else:
                    results[rank] = value
            if errors:
                raise RuntimeError(
                    "".join(f"Rank {rank} of {self.world_size} failed:\n{errors[rank]}" for rank in errors)
                )
        return [results[rank] for rank in range(self.world_size)]

    def close(self, timeout: float = 20.0) -> None:
        """End all processes, by force if they do not leave by themselves."""
        for pipe in self._pipes:
            pipe.send(None)
        deadline = time.monotonic() + timeout
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def run_ranks(function: Callable[..., T], world_size: int, args: Sequence[Any] = (), timeout: float = 120.0) -> list[T]:
    """Run ``function(*args)`` in as many gloo processes as ranks, once, and return the results by rank.

    Raises:
        RuntimeError: If a rank raised (with its traceback), died or did not end in time.
    """
    with RankPool(world_size) as pool:
        return pool.run(function, *args, timeout=timeout)
