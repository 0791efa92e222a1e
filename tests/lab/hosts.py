"""Several hosts on one machine: network namespaces on a switch, each with a link of a chosen rate."""

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


def address(rank: int) -> str:
    """Return the address of a host."""
    return f"10.213.0.{rank + 1}"


class HostsUnavailableError(RuntimeError):
    """This machine cannot make hosts; says why."""


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    """Makes hosts and runs one process on each.

    Args:
        rate: Rate at which each host can send, as ``tc`` writes it; ``None`` for as fast as the machine is.
        number: Number of hosts.

    Raises:
        HostsUnavailableError: Without root, iproute2, or the right to make namespaces.
    """

    def __init__(self, rate: str | None, number: int = 2) -> None:
        self.names = [f"gnnlab{os.getpid()}h{rank}" for rank in range(number)]
        self.switch = f"gnnlab{os.getpid()}s"
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

    def _make(self, rate: str | None) -> None:
        _do("ip", "netns", "add", self.switch)
        _do("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for rank, name in enumerate(self.names):
            port = f"port{rank}"
            _do("ip", "netns", "add", name)
            _do(
                "ip",
                "link",
                "add",
                INTERFACE,
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self.switch,
            )
            _do("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", name, "addr", "add", f"{address(rank)}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                _do("ip", "-n", name, "link", "set", link, "up")
        self.set_rate(rate)

    def set_rate(self, rate: str | None) -> None:
        """Let each host send at another rate from now on."""
        for name in self.names:
            root = ("tc", "-n", name, "qdisc")
            subprocess.run([*root, "delete", "dev", INTERFACE, "root"], check=False, capture_output=True, timeout=20)
            if rate is not None:
                _do(*root, "add", "dev", INTERFACE, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")

    def run(self, module: str, arguments: Sequence[str], timeout: float) -> None:
        """Run ``python -m module`` as one rank on each host, with torchrun's environment, and wait for all.

        Raises:
            RuntimeError: If one fails or does not end in time, with the output of all.
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
            "MASTER_ADDR": address(0),
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
        for name in (*self.names, self.switch):  # links go with their hosts
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)
