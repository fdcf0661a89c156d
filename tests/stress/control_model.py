"""Send random control requests and compare every response, the list and the statuses with a plain dict.

`python -m tests.stress.control_model` sends 1,000,000 requests, up to 50 of them in one transaction, with restarts and
steps of the clock in between. The store is in memory (/dev/shm): what survives a kill is the matter of control_kills.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.stress.campaigns import campaign_folder, campaign_parser
from tests.support.control_agent import CONFIGURED, ControlAgent, Model, random_operation, run_batch

MAX_BATCH = 50
RESTART_CHANCE = 0.05
STEPS_S = (0.0, 0.0, 0.5, 1.0, 4.0, 19.0)


def run_campaign(folder: Path, requests: int, rng: random.Random) -> Counter[int]:
    """The responses by status code. Raises AssertionError at the first difference."""
    agent = ControlAgent(folder, CONFIGURED)
    model, codes = Model(agent.now_s), Counter[int]()
    while codes.total() < requests:
        operations = [random_operation(rng) for _ in range(rng.randint(1, rng.choice((1, 5, MAX_BATCH))))]
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
    arguments = campaign_parser("control_model", __doc__, requests=1_000_000).parse_args()
    print(f"seed {arguments.seed}", flush=True)
    started_s, memory = time.monotonic(), Path("/dev/shm")
    with campaign_folder(memory if memory.is_dir() else None) as folder:
        codes = run_campaign(folder, arguments.requests, random.Random(arguments.seed))
    print(f"control requests: {codes.total()}, in {time.monotonic() - started_s:.0f} s; all agree with the model")
    print("responses: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    return 1 if any(code >= 500 for code in codes) else 0


if __name__ == "__main__":
    sys.exit(main())
