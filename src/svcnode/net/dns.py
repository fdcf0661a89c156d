"""Names to addresses.

Each name being resolved has a thread of its own. The pool that event loops use for it has few threads, and a handful
of names whose server does not answer would hold up all the others. Looks that need the same name at the same time
share one answer, so a name that hangs costs one thread, however often it is asked for.
"""

from __future__ import annotations

import asyncio
import socket
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
    """At least one, in the order to be tried; raises `socket.gaierror`."""
    loop = asyncio.get_running_loop()
    pending = _pending_by_loop.setdefault(loop, {})
    task = pending.get(host)
    if task is None:
        task = pending[host] = loop.create_task(_resolve_in_thread(host), name=f"svcnode resolve {host}")
        task.add_done_callback(lambda done: _discard(pending, host, done))
    with step("resolve", host):
        return await asyncio.shield(task)


def _discard(pending: _Pending, host: str, task: asyncio.Task[list[str]]) -> None:
    del pending[host]
    if not task.cancelled():
        task.exception()  # whoever still waits gets it; nobody may be left to


async def _resolve_in_thread(host: str) -> list[str]:
    return await DaemonCall("resolve").call(lambda: _getaddrinfo(host))


def _getaddrinfo(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        # Without file descriptors the resolver says of every name that there is none such; a socket tells the truth.
        socket.socket().close()
        raise
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
