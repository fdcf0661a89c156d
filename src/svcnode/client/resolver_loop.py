"""An event loop for those who must end in time, whatever the resolver of names does."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any


class DaemonResolverLoop(asyncio.SelectorEventLoop):
    """Resolves each name on a daemon thread of its own. The pool that loops use for it has few threads, so that names
    which hang would hold up the others, and the end of the program too."""

    def __del__(self) -> None:
        if hasattr(self, "_ssock"):  # else no more files could be opened, and there is nothing to close
            super().__del__()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:  # noqa: ANN401
        outcome = self.create_future()

        def settle(found: object, error: Exception | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(found)
            else:
                outcome.set_exception(error)

        def resolve() -> None:
            found, error = None, None
            try:
                found = socket.getaddrinfo(host, port, **options)
            except (OSError, UnicodeError) as exc:
                error = exc
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self.call_soon_threadsafe(settle, found, error)

        threading.Thread(target=resolve, name="svcnode resolve", daemon=True).start()
        return await outcome
