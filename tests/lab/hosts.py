"""Two hosts on one machine: network namespaces joined by a link of a chosen rate."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERFACE = "eth0"
ADDRESSES = ("10.213.0.1", "10.213.0.2")


class HostsUnavailableError(RuntimeError):
    """This machine cannot make hosts; says why."""


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    """Makes two hosts and runs one process on each.

    Args:
        rate: Rate of the link in each direction, as ``tc`` writes it.

    Raises:
        HostsUnavailableError: Without root, iproute2, or the right to make namespaces.
    """

    def __init__(self, rate: str) -> None:
        self.names = [f"gnnlab{os.getpid()}{letter}" for letter in "ab"]
        self.processes: list[subprocess.Popen[str]] = []
        if os.geteuid() != 0:
            raise HostsUnavailableError("needs root to make network namespaces")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise HostsUnavailableError(f"needs the command {tool!r} (package iproute2)")
        try:
            self._make(rate)
        except subprocess.CalledProcessError as error:
            self.close()
            raise HostsUnavailableError(f"cannot make network namespaces here: {error.stderr.strip()}") from error
        except BaseException:
            self.close()
            raise

    def _make(self, rate: str) -> None:
        one, other = self.names
        for name in self.names:
            _do("ip", "netns", "add", name)
        _do("ip", "link", "add", INTERFACE, "netns", one, "type", "veth", "peer", "name", INTERFACE, "netns", other)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                _do("ip", "-n", name, "link", "set", link, "up")
            limit = ("rate", rate, "burst", "64kb", "latency", "200ms")
            _do("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *limit)

    def run(self, module: str, arguments: Sequence[str], timeout: float) -> None:
        """Run ``python -m module`` as one rank on each host, with torchrun's environment, and wait for both.

        Raises:
            RuntimeError: If one fails or does not end in time, with the output of both.
        """
        self.processes = [self._start(rank, module, arguments) for rank in range(len(self.names))]
        outputs, failed = [], False
        for process in self.processes:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                self._end()
                output, _ = process.communicate()
            outputs.append(output)
            failed |= process.returncode != 0
        if failed:
            raise RuntimeError("\n".join(f"Host {rank}:\n{output}" for rank, output in enumerate(outputs)))

    def _start(self, rank: int, module: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(rank),
            "WORLD_SIZE": str(len(self.names)),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "29511",  # a host of its own has all its ports
            "TORCHELASTIC_RUN_ID": "lab",
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[rank], sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End what still runs and remove the hosts."""
        self._end()
        for process in self.processes:
            process.wait()
        for name in self.names:  # the link goes with its hosts
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)
