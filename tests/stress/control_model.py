"""Send random control requests and compare every response, the list and the statuses with a plain dict.

`python -m tests.stress.control_model` sends 1,000,000 requests, up to 50 of them in one transaction, with restarts and
steps of the clock in between. The store is in memory (/dev/shm): what survives a kill is the matter of control_kills.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.control_agent import CONFIGURED, ControlAgent, Model, random_operation, run_batch

MAX_BATCH = 50
RESTART_CHANCE = 0.01
STEPS_S = (0.0, 0.0, 0.5, 1.0, 4.0, 19.0)


def run_campaign(folder: Path, requests: int, rng: random.Random) -> Counter[int]:
    """The responses by status code. Raises AssertionError at the first difference."""
    agent = ControlAgent(folder, CONFIGURED)
    model, codes = Model(agent.now_s), Counter[int]()
    while codes.total() < requests:
        operations = [random_operation(rng) for _ in range(rng.randint(1, MAX_BATCH))]
        codes.update(run_batch(model, agent, operations))
        model.check_get(operations[-1], agent)
        model.wait(rng.choice(STEPS_S))
        agent.now_s = model.now_s
        if rng.random() < RESTART_CHANCE:
            agent.restart()
            model.restart()
        model.check(agent)
    agent.close()
    return codes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.control_model", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    started_s = time.monotonic()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="svcnode-model-") as folder:
        codes = run_campaign(Path(folder), arguments.requests, random.Random(seed))
    print(f"control requests: {codes.total()}, in {time.monotonic() - started_s:.0f} s; all agree with the model")
    print("responses: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    return 1 if any(code >= 500 for code in codes) else 0


if __name__ == "__main__":
    sys.exit(main())
