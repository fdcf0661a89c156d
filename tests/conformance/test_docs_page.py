"""docs/conform.md and docs/interface.md agree with the code, and the examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from svcnode.cli import build_parser
from svcnode.conformance.check import CLAUSES_PAGE, Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.report import plain_text, report_lines
from tests.conformance.conforming_node import service
from tests.conformance.in_memory import report_of
from tests.conformance.nonconforming_nodes import HealthIsStatic
from tests.conformance.test_pytest_plugin import run_pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conform.md").read_text()
INTERFACE = (ROOT / "docs" / "interface.md").read_text()
ACTION = ROOT / "examples" / "github-action.yml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_lists_every_check() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\[.*\)) \| (\w+) \|$", PAGE, re.MULTILINE)
    listed = [(name, " and ".join(re.findall(r"\[(.*?)\]", clauses)), level) for name, clauses, level in rows]
    assert listed == [(check.name, check.clause, check.level.value) for check in CHECKS]


# ---- clauses

CLAUSES = dict(re.findall(r'^\| <a id="([\d.]+)"></a>\1 \| (.*) \|$', INTERFACE, re.MULTILINE))
CITED = {clause for check in CHECKS for clause in check.clause.split(" and ")}
OWN_SECTION = "11."  # of svcnode, which conform does not test


def test_every_clause_that_can_be_tested_is_cited_and_no_other() -> None:
    testable = {
        number
        for number, text in CLAUSES.items()
        if "*(not tested)*" not in text and not number.startswith(OWN_SECTION)
    }
    assert testable == CITED
    assert (ROOT / CLAUSES_PAGE).read_text() == INTERFACE


# ---- examples


def test_the_example_report_is_the_printed_one() -> None:
    node = HealthIsStatic()
    node.services = [service("db", "Up"), service("storage", "Down")]
    printed = "\n".join(map(plain_text, report_lines(report_of(node), Level.SHOULD)))
    (shown,) = blocks("text")
    assert printed.replace("http://node.example", "http://127.0.0.1:8420") + "\n" == shown


def test_the_pytest_examples_are_collected_once_per_check(tmp_path: Path) -> None:
    for number, block in enumerate(blocks("python")):
        (tmp_path / f"test_{number}.py").write_text(block)
    ended = run_pytest(tmp_path, "--collect-only", "-q")
    assert ended.stdout.count("::test_node[") == len(CHECKS) * len(blocks("python")), ended.stdout + ended.stderr


def test_the_workflow_is_yaml_and_its_command_parses() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(ACTION.read_text())
    steps = workflow["jobs"]["conform"]["steps"]
    assert all("uses" in step or "run" in step for step in steps)
    (command,) = (step["run"] for step in steps if step.get("run", "").startswith("svcnode "))
    arguments = build_parser().parse_args(shlex.split(command)[1:])
    assert arguments.url == "http://127.0.0.1:8420"
    upload = next(step for step in steps if step.get("uses", "").startswith("actions/upload-artifact"))
    assert upload["with"]["path"] == arguments.junit
