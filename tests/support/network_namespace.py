"""A network of its own for one function: a namespace in which routes, links and names can be broken.

The namespace belongs to the thread that runs the function. Threads and processes that it starts are in it too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000

# Addresses of the namespace, of a neighbour that drops every packet, and of one that does not exist.
OWN_IPV4, OWN_IPV6 = "10.99.0.1", "2001:db8:99::1"
BLACK_HOLE_IPV4, BLACK_HOLE_IPV6 = "10.99.0.2", "2001:db8:99::2"
SILENT_IPV4 = "10.99.0.3"  # does not answer ARP
UNROUTED_IPV4, UNROUTED_IPV6 = "198.51.100.1", "2001:db8:1::1"

_SETUP = f"""
link set lo up
link add link0 type veth peer name link1
link set link0 addrgenmode none
link set link1 addrgenmode none
link set link1 up
link set link0 up
addr add {OWN_IPV4}/24 dev link0
addr add {OWN_IPV6}/64 dev link0 nodad
neigh add {BLACK_HOLE_IPV4} lladdr 02:00:00:00:00:99 dev link0 nud permanent
neigh add {BLACK_HOLE_IPV6} lladdr 02:00:00:00:00:99 dev link0 nud permanent
"""


class NetworkNamespace:
    def __init__(self, hosts_file: Path) -> None:
        self._hosts_file = hosts_file

    def enter(self) -> None:
        """For the calling thread. Skips the test if the system does not allow it."""
        flags = _CLONE_NEWNS | _CLONE_NEWNET
        if not sys.platform.startswith("linux") or ctypes.CDLL(None, use_errno=True).unshare(flags):
            pytest.skip(f"no network namespaces: {os.strerror(ctypes.get_errno())}")
        if shutil.which("ip") is None:
            pytest.skip("no network namespaces: ip is not installed")
        self.set_hosts()
        for command in (["mount", "--make-rprivate", "/"], ["mount", "--bind", str(self._hosts_file), "/etc/hosts"]):
            subprocess.run(command, check=True)
        for line in _SETUP.strip().splitlines():
            self.ip(line)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        wait_until(lambda: bool(self.ip("link show dev link0 up").count("state UP")), "the link is up")
        wait_until(lambda: not self.ip("-6 addr show dev link0 tentative"), "its addresses are usable")

    def ip(self, arguments: str) -> str:
        done = subprocess.run(["ip", *arguments.split()], check=False, capture_output=True, text=True)
        if "Unknown device type" in done.stderr or "Operation not" in done.stderr:
            pytest.skip(f"no network namespaces: {done.stderr.strip()}")
        assert not done.returncode, done.stderr
        return done.stdout

    def set_hosts(self, **addresses: str) -> None:
        """The addresses of each name, separated by spaces. In a name, "_" is a dot."""
        pairs = [(name.replace("_", "."), address) for name, texts in addresses.items() for address in texts.split()]
        lines = [f"{address} {name}\n" for name, address in [("localhost", "127.0.0.1"), *pairs]]
        self._hosts_file.write_text("".join(lines))


def run_in_namespace(hosts_file: Path, function: Callable[[NetworkNamespace], T]) -> T:
    """The result of the function; its exception too."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            namespace = NetworkNamespace(hosts_file)
            namespace.enter()
            results.append(function(namespace))
        except BaseException as exc:  # noqa: BLE001  raised by the caller
            errors.append(exc)

    thread = threading.Thread(target=run, name="network namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
