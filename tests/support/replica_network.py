"""A network namespace for each replica, with links to the namespace of the calling thread that can be cut."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.servers.base import wait_until
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.network_namespace import NetworkNamespace

HOST = "10.98.0.254"  # of the servers, in the namespace of the calling thread


class ReplicaNetwork:
    def __init__(self, namespace: NetworkNamespace, replicas: int) -> None:
        self._namespace = namespace
        self._count = replicas
        self._holders: list[subprocess.Popen[bytes]] = []  # a process keeps each namespace

    def __enter__(self) -> Self:
        for name, package in (("nsenter", "util-linux"), ("unshare", "util-linux"), ("nft", "nftables")):
            program(name, package)
        self._namespace.ip(f"addr add {HOST}/32 dev lo")
        try:
            for index in range(self._count):
                self._add(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def _add(self, index: int) -> None:
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._holders.append(holder)
        namespace, own = Path(f"/proc/{holder.pid}/ns/net"), Path("/proc/thread-self/ns/net").readlink()
        wait_until(lambda: namespace.readlink() != own, "a namespace")
        self._namespace.ip(f"link add r{index} type veth peer name link0 netns {holder.pid}")
        self._namespace.ip(f"addr add 10.98.{index + 1}.254/24 dev r{index}")
        self._namespace.ip(f"link set r{index} up")
        for command in (
            "ip link set lo up",
            f"ip addr add 10.98.{index + 1}.1/24 dev link0",
            "ip link set link0 up",
            f"ip route add default via 10.98.{index + 1}.254",
        ):
            self._run(index, *command.split())

    def prefix(self, index: int) -> list[str]:
        """Runs a command in the namespace of a replica."""
        return ["nsenter", f"--net=/proc/{self._holders[index].pid}/ns/net"]

    @contextmanager
    def cut(self, index: int, port: int, *, sent: bool = True, received: bool = True) -> Iterator[None]:
        """Packets of this replica to a port of the servers, and from it, are dropped."""
        rules = [f"add rule inet cut sent tcp dport {port} drop"] * sent
        rules += [f"add rule inet cut received tcp sport {port} drop"] * received
        hooks = {"sent": "output", "received": "input"}
        chains = [
            f"add chain inet cut {name} {{ type filter hook {hook} priority 0; }}" for name, hook in hooks.items()
        ]
        self._run(index, "nft", "; ".join(["add table inet cut", *chains, *rules]))
        yield
        self._run(index, "nft", "delete table inet cut")

    def _run(self, index: int, *command: str) -> None:
        done = subprocess.run([*self.prefix(index), *command], check=False, capture_output=True, text=True)
        assert not done.returncode, f"{command}: {done.stderr}"
