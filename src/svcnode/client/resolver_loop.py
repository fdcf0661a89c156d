"""An event loop that ends in time even if the DNS resolver hangs."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

from svcnode.net.threads import call_in_thread


class DaemonResolverLoop(asyncio.SelectorEventLoop):
    """Resolves each name on its own daemon thread.

    The default executor has few threads, so names that hang would block other names, and would keep the program from
    ending.
    """

    def __del__(self) -> None:
        if hasattr(self, "_ssock"):  # not set if the limit of open files was reached; then there is nothing to close
            super().__del__()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:  # noqa: ANN401
        lookup = call_in_thread(partial(socket.getaddrinfo, host, port, **options), "resolve")
        return await asyncio.wrap_future(lookup, loop=self)
