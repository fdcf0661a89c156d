"""The texts of every check are complete, so that a failure is enough to fix a node."""

from __future__ import annotations

import re

import pytest

from svcnode.conformance.check import Level
from svcnode.conformance.checks import CHECKS


def test_names_are_unique_and_a_check_has_a_clause_and_two_sentences() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", check.name)
        assert re.fullmatch(r"\d+\.\d+( and \d+\.\d+)?", check.clause)
        assert all(sentence.endswith(".") and "\n" not in sentence for sentence in (check.requirement, check.fix))
        assert check.is_specified or check.level is not Level.MUST


def test_a_check_stands_only_on_those_before_it_and_on_nothing_lighter_than_itself() -> None:
    """Or a fault that does not count could hide one that does."""
    levels: dict[str, Level] = {}
    for check in CHECKS:
        assert set(check.needs) <= levels.keys()
        assert all(levels[need].is_included_in(check.level) for need in check.needs)
        levels[check.name] = check.level


# What would mislead a real client: a green light that is none, a version or a method that is silently ignored.
MISLEADING = (
    *("health-reflects-services", "service-health-agrees", "service-unknown-refused", "path-unknown-refused"),
    *("head-code", "methods-refused"),
    *("version-malformed", "version-empty", "version-both-forms", "version-among-others"),
    *(check.name for check in CHECKS if check.name.startswith("version-unsupported-on-")),
)


def test_what_would_mislead_a_client_counts_by_default() -> None:
    levels = {check.name: check.level for check in CHECKS}
    assert [name for name in MISLEADING if not levels[name].is_included_in(Level.SHOULD)] == []


@pytest.mark.parametrize(
    ("level", "counting"),
    [
        (Level.MUST, {Level.MUST}),
        (Level.SHOULD, {Level.MUST, Level.SHOULD}),
        (Level.ADVICE, {Level.MUST, Level.SHOULD, Level.ADVICE}),
    ],
)
def test_a_level_counts_itself_and_all_that_weighs_more(level: Level, counting: set[Level]) -> None:
    assert {one for one in Level if one.is_included_in(level)} == counting
