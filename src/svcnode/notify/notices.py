"""How the telling fares, for whoever wants to know; apart from it, since it is there also where nobody is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Notices:
    """What became of messages, counted once for each target that they were for."""

    sent: int = 0
    failed: int = 0  # attempts
    dropped: int = 0
    waiting: int = 0
