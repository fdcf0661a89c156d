"""How much a server may say in one look.

The answer to a look is short. One that never ends would fill the memory, or keep the event loop busy past every
deadline, and with it all the looks at others.
"""

from __future__ import annotations

MAX_HEARD_BYTES = 64 * 1024


class TooMuchError(ConnectionError):
    """It never stops talking; the text says so."""


def too_much(limit_bytes: int = MAX_HEARD_BYTES) -> TooMuchError:
    return TooMuchError(f"it said more than {limit_bytes // 1024} KiB in one look")
