"""The served OpenAPI document, held against the server that serves it, by a tool that knows neither.

Schemathesis reads the document, makes requests that fit it and requests that do not, and checks every answer against
it: codes, content types, headers, bodies, refused methods and links.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.http_server import running_server
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from pathlib import Path

# Codes that already mean something here. A caller who chooses one of them for "partially healthy" gets it without the
# body that it has otherwise, which no document can say: one code has one description. They are not chosen.
TAKEN = (400, 404, 405, 500)

CHOSEN = [str(code) for code in range(200, 600) if code not in TAKEN]

CONFIG = f"""
hooks = "hooks.py"
seed = 20240229

[generation]
max-examples = 30
database = "none"

[phases.stateful.generation]
max-examples = 10

[checks]
# Health is a code: 503 is a result, and every other one may be the caller's choice. An internal error is an error.
not_a_server_error.expected-statuses = {[*CHOSEN, "400", "404", "405"]}
# A well-formed request may name a service that is not there, but is never a bad one.
positive_data_acceptance.expected-statuses = {[*CHOSEN, "404"]}
"""

HOOKS = f"""
import schemathesis


@schemathesis.hook
def filter_query(context, query):
    return str((query or {{}}).get("partial_status")) not in {set(map(str, TAKEN))}
"""


def test_the_server_keeps_every_promise_of_its_document(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    (tmp_path / "hooks.py").write_text(HOOKS)
    with running_server(worked_example()) as wire:
        host, port = wire.address
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "schemathesis.cli",
                "--config-file=schemathesis.toml",
                "run",
                "--checks=all",
                "--phases=examples,coverage,fuzzing,stateful",
                "--no-color",
                f"http://{host}:{port}/openapi.json",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 selected / 4 total" in run.stdout
    assert "1 covered / 1 selected / 1 total" in run.stdout
