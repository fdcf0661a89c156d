"""The open files that the system allows the process, shared out among those who need them."""

from __future__ import annotations

import resource

from svcnode.scheduler import MAX_CONCURRENT_CHECKS
from svcnode.server.server import ServerLimits

RESERVED_FDS = 128


def allocate_fds() -> tuple[int, int]:
    """How many connections to hold and looks to have in flight: as we would like, or as the limit leaves room for."""
    connections, looks = ServerLimits().connections, MAX_CONCURRENT_CHECKS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = connections + looks + RESERVED_FDS
    if soft not in (hard, resource.RLIM_INFINITY) and soft < enough:
        soft = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= enough:
        return connections, looks
    room = max(0, soft - RESERVED_FDS)
    looks = max(1, min(looks, room // 4))
    return max(1, min(connections, room - looks)), looks
