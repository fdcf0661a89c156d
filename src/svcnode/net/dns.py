"""Resolves host names to addresses.

Each host name is resolved in its own thread: the pool of an event loop has few threads, and a few names whose name
server does not respond would delay all others. Checks that need the same name at the same time share one lookup, so a
name that does not resolve costs one thread.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import zip_longest
from weakref import WeakKeyDictionary

from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step

_Pending = dict[str, asyncio.Task[list[str]]]

_pending_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pending] = WeakKeyDictionary()


def is_ip_address(host: str) -> bool:
    return any(_is_in_family(family, host) for family in (socket.AF_INET, socket.AF_INET6))


def _is_in_family(family: socket.AddressFamily, host: str) -> bool:
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        return False
    return True


async def resolve_host(host: str) -> list[str]:
    """At least one address, in the order in which to try them. Raises `socket.gaierror`."""
    task = pending_lookup(host)
    with step("resolve", host):
        return await asyncio.shield(task)


def pending_lookup(host: str) -> asyncio.Task[list[str]]:
    """The lookup of the host that is running, or a new one. It is shared: do not cancel it."""
    loop = asyncio.get_running_loop()
    pending = _pending_by_loop.setdefault(loop, {})
    task = pending.get(host)
    if task is None:
        task = pending[host] = loop.create_task(_resolve_in_thread(host), name=f"svcnode resolve {host}")
        task.add_done_callback(lambda done: _discard(pending, host, done))
    return task


def _discard(pending: _Pending, host: str, task: asyncio.Task[list[str]]) -> None:
    del pending[host]
    if not task.cancelled():
        task.exception()  # marks it as retrieved: all waiting checks may have been cancelled


async def _resolve_in_thread(host: str) -> list[str]:
    return await DaemonCall("resolve").call(lambda: _getaddrinfo(host))


def _getaddrinfo(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        # With no file descriptors left, getaddrinfo reports that the host does not exist. A socket has the right error.
        socket.socket().close()
        raise
    return interleave_families(list(dict.fromkeys(str(address[0]) for *_, address in found)))


def interleave_families(addresses: list[str]) -> list[str]:
    """In the order of the system, but IPv6 and IPv4 in turn, so that a family that does not work delays little."""
    first = [address for address in addresses if (":" in address) == (":" in addresses[0])]
    other = [address for address in addresses if address not in first]
    pairs = zip_longest(first, other)
    return [address for pair in pairs for address in pair if address is not None]
