"""Follows the recipe "a probe kind" of CONTRIBUTING.md for an invented kind in a clone, and runs the checks there.

The files below are the steps of the recipe, and nothing else is changed: whatever then fails, the recipe does not name.
`python scripts/try_recipe.py` runs the tests that concern kinds; with `--full`, `make check`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBE = '''\
"""`gopher://host:port/selector`: a Gopher server that answers with a menu.

ready      the server sends a menu with at least `min_items` items
not ready  the menu has fewer items
failed     any other response; connection refused or closed, host unreachable
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.url import UrlForm
from svcnode.net.streams import ConnectionStreams
from svcnode.probes.base import CheckError
from svcnode.probes.options import Count
from svcnode.probes.session import SessionProbe

if TYPE_CHECKING:
    from svcnode.core.model import Verdict

_FIELDS = 4  # type and text, selector, host, port


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GopherProbe(SessionProbe[ConnectionStreams]):
    min_items: Count = 0

    default_port: ClassVar = 70
    url_form: ClassVar = UrlForm(has_credentials=False)

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self.validate_connection()

    async def open(self) -> ConnectionStreams:
        return await self.open_streams()

    async def check_connection(self, connection: ConnectionStreams) -> Verdict | None:
        connection.writer.write(self.url.path.encode() + b"\\r\\n")
        answer = await connection.reader.read(-1)
        if not answer:
            raise EOFError
        *items, end, rest = answer.split(b"\\r\\n") if answer.count(b"\\r\\n") else (answer, b"")
        if (end, rest) != (b".", b"") or any(item.count(b"\\t") < _FIELDS - 1 for item in items):
            raise CheckError("the response is not a menu", ReasonCode.PROTOCOL_ERROR)
        if len(items) < self.min_items:
            return self.not_ready(f"{len(items)} items, min_items is {self.min_items}", ReasonCode.STARTING)
        return None

    def abort(self, connection: ConnectionStreams) -> None:
        connection.abort()
'''
TESTS = '''\
"""gopher:// against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, sending
from tests.support.verdicts import PROTOCOL_ERROR, READY, not_ready

if TYPE_CHECKING:
    from tests.support.check_runner import CheckRunner

MENU = b"1Ledger\\t/ledger\\thost\\t70\\r\\n.\\r\\n"


def test_a_server_with_a_menu_is_ready(check: CheckRunner) -> None:
    with Backend(sending(MENU)) as backend:
        assert check(f"gopher://{backend.address}/ledger", min_items=1) == READY


def test_a_menu_with_too_few_items_is_not_ready(check: CheckRunner) -> None:
    with Backend(sending(MENU)) as backend:
        assert check(f"gopher://{backend.address}", min_items=2) == not_ready(ReasonCode.STARTING)


@pytest.mark.parametrize("answer", [b"a text", b"a text\\r\\n.\\r\\n", MENU[:-3]])
def test_any_other_response_is_failed(check: CheckRunner, answer: bytes) -> None:
    with Backend(sending(answer)) as backend:
        assert check(f"gopher://{backend.address}") == PROTOCOL_ERROR
'''
BAD_CONFIG = """\
# services.db.probe.min_items: must be a whole number of at least 0, not -1 (probe-gopher-min-items.toml:4)
[[services]]
id = "db"
probe = { url = "gopher://127.0.0.1", min_items = -1 }
"""
SECTION = """\
## gopher

URL: `gopher://127.0.0.1/ledger`. Ready when it sends a menu.

| option | type | default | example |
|---|---|---|---|
| `min_items` | whole number: a menu with fewer items is not ready | `0` | `min_items = 3` |

**Noticed by default**: a server that does not answer, or sends something other than a menu.

**Noticed with an option**: `min_items`: a menu that is not complete yet.

**Not noticed**: what the items lead to.

"""
NEW_FILES = {
    "src/svcnode/probes/gopher.py": PROBE,
    "tests/integration/probes/test_gopher.py": TESTS,
    "tests/bad_configs/probe-gopher-min-items.toml": BAD_CONFIG,
}
# In this file, before this line, this text.
ADDED_LINES = (
    ("src/svcnode/probes/__init__.py", '    "grpc": ', '    "gopher": "svcnode.probes.gopher:GopherProbe",\n'),
    ("docs/probes/README.md", "| [`grpc`,", "| [`gopher`](network.md#gopher) | a Gopher server | 70 | | reuse |\n"),
    ("docs/probes/network.md", "## grpc, grpcs\n", SECTION),
)
# Tests with a case for each kind, and tests of what has all kinds at once.
PARAMETRIZED = ("tests/contract", "tests/unit/probes", "tests/unit/config", "tests/unit/node/test_definition.py")
TESTS_OF_ALL_KINDS = (
    *(
        "tests/integration/probes/test_gopher.py",
        "tests/integration/test_docs.py",
        "tests/integration/test_man_pages.py",
    ),
    *("tests/unit/probes/test_kinds.py", "tests/unit/probes/test_drivers.py", "tests/unit/probes/test_table.py"),
    *("tests/unit/cli/test_completion.py", "tests/unit/core/test_remedies.py", "tests/unit/cli/init"),
    *("tests/integration/test_startup.py", "tests/wording", "tests/unit/config/test_json_schema.py"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the recipe for a probe kind.")
    parser.add_argument("--full", action="store_true", help="run `make check` instead of the tests that concern kinds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="svcnode-recipe-") as name:
        clone = Path(name) / "svcnode"
        run("git", "clone", "--quiet", ROOT, clone, cwd=ROOT)
        follow_recipe(clone)
        run("make", "wording", cwd=clone)
        if arguments.full:
            run("make", "check", cwd=clone)
        else:
            pytest = (".venv/bin/python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile")
            run(".venv/bin/ruff", "check", "--quiet", "src/svcnode/probes", "tests/integration/probes", cwd=clone)
            run(*pytest, "-k", "gopher", *PARAMETRIZED, cwd=clone)
            run(*pytest, *TESTS_OF_ALL_KINDS, cwd=clone)
    print("the recipe is complete")
    return 0


def follow_recipe(clone: Path) -> None:
    for path, text in NEW_FILES.items():
        (clone / path).write_text(text)
    for path, before, text in ADDED_LINES:
        content = (clone / path).read_text()
        if content.count(f"\n{before}") != 1:
            sys.exit(f"{path} has no single line that begins with {before!r}")
        (clone / path).write_text(content.replace(f"\n{before}", f"\n{text}{before}"))


def run(*command: str | Path, cwd: Path) -> None:
    """Print and run a command; exit with its code if it fails."""
    argv = [str(part) for part in command]
    print("$", *argv, flush=True)
    code = subprocess.run(argv, cwd=cwd, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
