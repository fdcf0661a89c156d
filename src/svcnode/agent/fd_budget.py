"""Divides the file descriptors that the system allows this process."""

from __future__ import annotations

import resource

from svcnode.scheduler import MAX_CONCURRENT_CHECKS
from svcnode.server.state import ServerLimits

RESERVED_FDS = 128


def allocate_fds() -> tuple[int, int]:
    """The limits of connections and of concurrent checks; smaller than the defaults if the system allows too few."""
    connections, checks = ServerLimits().connections, MAX_CONCURRENT_CHECKS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + checks + RESERVED_FDS
    if soft not in (hard, resource.RLIM_INFINITY) and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections, checks
    available = max(0, soft - RESERVED_FDS)
    checks = max(1, min(checks, available // 4))
    return max(1, min(connections, available - checks)), checks
