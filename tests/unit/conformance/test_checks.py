"""The texts of every check are complete, so that a failure is enough to fix a node."""

from __future__ import annotations

import re

import pytest

from svcnode.conformance.check import Check, Level
from svcnode.conformance.checks import CHECKS

EACH = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


def test_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@EACH
def test_a_check_has_a_name_a_clause_and_two_sentences(check: Check) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", check.name)
    assert re.fullmatch(r"\d+\.\d+( and \d+\.\d+)?", check.clause)
    for sentence in (check.requirement, check.fix):
        assert sentence[0].isupper() or sentence[0].isdigit() or sentence.startswith(("/", "spec_", "node_"))
        assert sentence.endswith(".")
        assert "\n" not in sentence


@EACH
def test_what_the_document_does_not_state_is_no_must(check: Check) -> None:
    assert check.is_specified or check.level is not Level.MUST


@EACH
def test_a_check_stands_only_on_those_before_it(check: Check) -> None:
    before = {one.name for one in CHECKS[: CHECKS.index(check)]}
    assert set(check.needs) <= before


@EACH
def test_a_check_stands_on_nothing_lighter_than_itself(check: Check) -> None:
    """Or a fault that does not count could hide one that does."""
    levels = {one.name: one.level for one in CHECKS}
    assert all(levels[need].is_included_in(check.level) for need in check.needs)


# What would mislead a real client: a green light that is none, a version or a method that is silently ignored.
MISLEADING = (
    "health-reflects-services",
    "service-health-agrees",
    "service-unknown-refused",
    "path-unknown-refused",
    "head-code",
    "methods-refused",
    "version-malformed",
    "version-empty",
    "version-both-forms",
    "version-among-others",
    *(check.name for check in CHECKS if check.name.startswith("version-unsupported-on-")),
)


@pytest.mark.parametrize("name", MISLEADING)
def test_what_would_mislead_a_client_counts_by_default(name: str) -> None:
    (level,) = (check.level for check in CHECKS if check.name == name)
    assert level.is_included_in(Level.SHOULD)


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
