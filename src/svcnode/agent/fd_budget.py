"""Divides the file descriptors that the system allows this process."""

from __future__ import annotations

from svcnode.net.fd_limit import raise_fd_limit
from svcnode.scheduler import MAX_CONCURRENT_CHECKS
from svcnode.server.state import ServerLimits

RESERVED_FDS = 128


def allocate_fds() -> tuple[int, int]:
    """The limits of connections and of concurrent checks; smaller than the defaults if the system allows too few."""
    connections, checks = ServerLimits().connections, MAX_CONCURRENT_CHECKS
    available = raise_fd_limit(connections + checks + RESERVED_FDS) - RESERVED_FDS
    checks = max(1, min(checks, available // 4))
    return max(1, min(connections, available - checks)), checks
