"""The files of deploy/recipes, and machines that they are about: a node, and a program beside it."""

from __future__ import annotations

import re
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.backends import HttpBackend, http_response
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECIPES = Path(__file__).parents[2] / "deploy" / "recipes"
# The same on each machine, as in the files. A machine is an address of the loopback interface.
PROGRAM_PORT, NODE_PORT = free_port(), free_port()
_STATUSES = {200: "Up", 206: "Initializing", 503: "Down"}
_CONFIG = """
[node]
name = "{address}"

[server]
listen = "{address}:{port}"
drain = "1h"

[[services]]
id = "ledger"
status = "{status}"
impact = "critical"
"""


def read_recipe(name: str, replaced: Mapping[str, str], *, strict: bool = False) -> str:
    """The text of a file with other addresses, ports and intervals.

    `strict`: 206 is bad. Of two lines with these comments, the second one is used.
    """
    text = (RECIPES / name).read_text()
    if strict:
        text, count = re.subn(r"(?m)^([ \t]*)\S.* # 206 is good\n\s*# (.*) # 206 is bad$", r"\1\2", text)
        assert count == 1, f"{name} does not have the two lines"
    assert [each for each in replaced if each not in text] == []
    return re.sub("|".join(map(re.escape, replaced)), lambda match: replaced[match[0]], text)


class Machine:
    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir()
        self._folder = folder
        self.address = address
        self._agent: Agent | None = None
        self._program: HttpBackend | None = None

    def __enter__(self) -> Self:
        self.set_health(200)
        self._start_program()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_node()
        self._stop_program()

    # ---- the node

    def set_health(self, code: int) -> None:
        """Starts the node if it does not run."""
        config = _CONFIG.format(address=self.address, port=NODE_PORT, status=_STATUSES[code])
        if self._agent is None:
            self._agent = Agent(self._folder, config=config)
            self._agent.wait_for_event("started")
        else:
            self._agent.reload(config)
        wait_until(lambda: self._health() == code, f"health {code}")

    def _health(self) -> int:
        assert self._agent is not None
        with self._agent.connect(NODE_PORT, host=self.address) as client:
            return client.request("/svc/node/health").code

    def drain_node(self) -> None:
        """It does not stop by itself within the test."""
        assert self._agent is not None
        self._agent.signal(signal.SIGTERM)
        wait_until(lambda: self._health() == 503, "health 503")

    def kill_node(self) -> None:
        if self._agent is not None:
            self._agent.__exit__()
            self._agent = None

    # ---- the program

    def _start_program(self) -> None:
        response = http_response(200, self.address, Connection="close")
        self._program = HttpBackend(response, host=self.address, port=PROGRAM_PORT)
        self._program.__enter__()

    def _stop_program(self) -> None:
        if self._program is not None:
            self._program.__exit__()
            self._program = None

    @contextmanager
    def stopped_program(self) -> Iterator[None]:
        self._stop_program()
        yield
        self._start_program()
