"""The clock of a node goes on while the machine is asleep."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SUSPENDED_S = 1_000_000
# In a time namespace, the machine has slept for as long as one says.
SUSPEND_CODE = ["unshare", "--time", "--fork", "--boottime", str(SUSPENDED_S)]
LEAD = """
import time
from svcnode.node import Node
from svcnode.server.response_cache import ResponseCache
from svcnode.server.connection import steady_s

node = Node("validator-7", version="v1")
for now_s in (node.now_s, ResponseCache(node, ("/svc",))._clock, steady_s):
    print(round(now_s() - time.monotonic()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="making a time namespace needs root")
def test_a_night_asleep_makes_evidence_as_old_as_the_night() -> None:
    said = subprocess.run(
        [*SUSPEND_CODE, sys.executable, "-c", LEAD], capture_output=True, text=True, check=True, timeout=60
    )
    assert [int(line) for line in said.stdout.split()] == [SUSPENDED_S] * 3
