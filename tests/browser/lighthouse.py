"""The score of Lighthouse for accessibility, of the page, the report and the public page: `make lighthouse`.

It prints a line for each, and the audits that are not passed; it fails unless every score is 100.
"""

# ruff: noqa: T201  a command-line program
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.situations import SITUATIONS, begin, node_with_past
from tests.browser.test_public_page import public_node
from tests.support.servers.provision import npm_package, program, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "12.8.2"
CHROME_FLAGS = "--headless=new --no-sandbox --disable-gpu"
COUNTS = (12, 200)
PRESETS = ("desktop", "phone")
FULL_SCORE = 100
TIMEOUT_S = 300


def audit(url: str, preset: str) -> dict[str, Any]:
    """What Lighthouse found."""
    cli = npm_package("lighthouse", VERSION) / "cli" / "index.js"
    options = ["--only-categories=accessibility", "--output=json", "--quiet", f"--chrome-flags={CHROME_FLAGS}"]
    if preset == "desktop":
        options.append("--preset=desktop")
    environ = {**os.environ, "CHROME_PATH": program("chromium", "chromium")}
    command = [tool("node"), str(cli), url, *options]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def failures(found: dict[str, Any]) -> Iterator[str]:
    """The audits that are not passed, with their elements."""
    for one in found["audits"].values():
        if one["score"] is not None and one["score"] < 1:
            items = one.get("details", {}).get("items", [])
            yield f"{one['id']}: {'; '.join(item.get('node', {}).get('selector', '') for item in items)}"


def pages(folder: Path) -> Iterator[tuple[str, str]]:
    """What is audited: its name and its URL, which answers until the next one is asked for."""
    for count in COUNTS:
        with node_with_past(count, folder / f"{count}.db") as node:
            for situation in SITUATIONS:
                begin(situation, node)
                yield f"page, {count} services, {situation}", node.url
            yield f"report, {count} services", f"{node.url}report"
            yield f"timeline of one of {count} services", f"{node.url}page/timeline?id=ledger"
    with public_node(folder) as url:
        yield "public page", url


def main() -> int:
    scores: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, url in pages(Path(folder)):
            for preset in PRESETS:
                found = audit(url, preset)
                scores.append(round(100 * found["categories"]["accessibility"]["score"]))
                print(f"{scores[-1]:3}  {preset:8} {name}", *failures(found), sep="\n     ", flush=True)
    return 0 if min(scores) == FULL_SCORE else 1


if __name__ == "__main__":
    sys.exit(main())
