"""The number of file descriptors that the system allows this process."""

from __future__ import annotations

import math
import resource


def raise_fd_limit(needed: int) -> int:
    """Raise the soft limit as far as needed and allowed. Returns how many of the needed descriptors are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def hard_fd_limit() -> float:
    """How far `raise_fd_limit` can go. Infinity: unlimited."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if hard == resource.RLIM_INFINITY else hard


def fd_limit() -> float:
    """The soft limit: what this process may use without a change of its limits. Infinity: unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft
