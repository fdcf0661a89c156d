"""The clock of a node also counts the time that the machine sleeps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SUSPENDED_S = 1_000_000
# In a time namespace, CLOCK_BOOTTIME is ahead of time.monotonic, as after a sleep.
IN_TIME_NAMESPACE = ["unshare", "--time", "--fork", "--boottime", str(SUSPENDED_S)]
PRINT_LEADS = """
import time
from svcnode.node.node_state import NodeState
from svcnode.server.response_cache import ResponseCache
from svcnode.server.connection import monotonic_s
from tests.support.nodes import make_node

node = make_node("validator-7", version="v1")
for clock in (node.now_s, ResponseCache(node, ("/svc",))._clock, monotonic_s):
    print(round(clock() - time.monotonic()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a time namespace needs root")
def test_the_time_asleep_makes_evidence_older() -> None:
    process = subprocess.run(
        [*IN_TIME_NAMESPACE, sys.executable, "-c", PRINT_LEADS], capture_output=True, text=True, check=True, timeout=60
    )
    assert [int(line) for line in process.stdout.split()] == [SUSPENDED_S] * 3
