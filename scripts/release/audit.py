"""`make audit`: asks pip-audit for known vulnerabilities of the pinned packages.

Exit code: 0 none, 1 some, 3 at least one package was not audited. pip-audit itself calls it a success if its database
knows none of the packages, as behind a mirror.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from scripts.release.commands import ROOT, clean_environ, tools

PINS = ROOT / "requirements" / "runtime.txt"
NOT_AUDITED = 3


def main() -> int:
    program, options = tools() / "pip-audit", ("--disable-pip", "--require-hashes", "--format", "json")
    done = subprocess.run(
        [program, *options, "--requirement", PINS], env=clean_environ(), capture_output=True, text=True, check=False
    )
    code, lines = judge(done.stdout, pinned(PINS.read_text(encoding="utf-8")))
    print("\n".join(lines))
    return code


def pinned(requirements: str) -> dict[str, str]:
    """The version of each package."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", requirements, re.MULTILINE))


def judge(report: str, pins: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code and the lines to print, from what pip-audit printed. It skips packages for other systems."""
    packages = _packages(report)
    audited = [package for package in packages if "vulns" in package]
    skipped = [package["name"] for package in packages if "vulns" not in package]
    known = [f"{one['name']} {one['version']}: {vuln['id']}" for one in audited for vuln in one["vulns"]]
    missing = skipped if audited else list(pins)
    lines = [f"not audited: {name} {pins.get(name, '')}" for name in missing]
    lines += [f"vulnerable: {text}" for text in known]
    if audited:
        lines.append(f"{len(audited)} packages audited, {len(known)} known vulnerabilities, {len(missing)} not audited")
    else:
        lines.append("nothing was audited: the database of pip-audit cannot be reached, or has none of these packages")
    return (1 if known else NOT_AUDITED if missing else 0), lines


def _packages(report: str) -> list[dict[str, Any]]:
    """Empty if pip-audit printed no report."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        return []
    return packages


if __name__ == "__main__":
    sys.exit(main())
