"""An event loop that ends in time even if the DNS resolver hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any


class DaemonResolverLoop(asyncio.SelectorEventLoop):
    """Resolves each name on its own daemon thread.

    The default executor has few threads, so names that hang would block other names and the end of the program.
    """

    def __del__(self) -> None:
        if hasattr(self, "_ssock"):  # not set if the limit of open files was reached; then there is nothing to close
            super().__del__()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:  # noqa: ANN401
        future = self.create_future()

        def set_outcome(addresses: object, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(addresses)
            else:
                future.set_exception(error)

        def resolve() -> None:
            addresses, error = None, None
            try:
                addresses = socket.getaddrinfo(host, port, **options)
            except (OSError, UnicodeError) as exc:
                error = exc
            with suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(set_outcome, addresses, error)

        threading.Thread(target=resolve, name="svcnode resolve", daemon=True).start()
        return await future
