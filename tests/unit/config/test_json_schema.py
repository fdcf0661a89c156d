"""The JSON Schema agrees with the parser, except for the rules that it cannot express."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from svcnode.config.json_schema import FILE, build_schema
from tests.unit.config.test_tables import VALID

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SCHEMA = build_schema()
BAD = ROOT / "tests" / "bad_configs"


def in_json(value: Any) -> Any:
    """A TOML value as an editor has it; dates, nan and inf are values that no key has."""
    match value:
        case dict():
            return {key: in_json(inner) for key, inner in value.items()}
        case list():
            return [in_json(inner) for inner in value]
        case float() if not (value == value and abs(value) < float("inf")):  # noqa: PLR0124  nan
            return None
        case str() | bool() | int() | float():
            return value
        case _:
            return None


VALIDATOR = jsonschema_rs.validator_for(SCHEMA)


def errors_of(config: str) -> list[str]:
    return [str(error) for error in VALIDATOR.iter_errors(in_json(tomllib.loads(config)))]


def test_the_shipped_file_is_a_valid_schema_and_up_to_date(request: pytest.FixtureRequest) -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    text = json.dumps(SCHEMA, indent=1, ensure_ascii=False) + "\n"
    if request.config.getoption("--update-wording", default=False):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "run `make wording` to write it again"


def bad_configs() -> Iterator[Any]:
    for file in BAD.iterdir():
        with suppress(ValueError, RecursionError):  # not TOML
            yield in_json(tomllib.loads(file.read_bytes().decode()))


def test_the_schema_rejects_most_of_what_the_parser_rejects() -> None:
    """Most others are about files and variables of this machine, or compare the values of several keys."""
    rejected = [not VALIDATOR.is_valid(config) for config in bad_configs()]
    assert sum(rejected) / len(rejected) >= 0.7


def good_configs() -> list[tuple[str, str]]:
    files = [*(ROOT / "examples" / "nodes").glob("*.toml"), *(ROOT / "deploy").rglob("svcnode*.toml")]
    pages = [*ROOT.glob("README.md"), *(ROOT / "docs").rglob("*.md")]  # the wheel has none
    blocks = [
        (page.name, block)
        for page in pages
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    return [*((file.name, file.read_text()) for file in files), *blocks]


@pytest.mark.parametrize(("name", "config"), good_configs())
def test_the_schema_accepts_the_configurations_of_the_examples_and_the_pages(name: str, config: str) -> None:
    """Pages may show a part of a service."""
    if not re.search(r"^\[", config, re.MULTILINE):
        config = f'[[services]]\nid = "a"\n{config}'
    assert errors_of(config) == []


def part_of(path: str) -> Any:
    """The schema of one key."""
    table, key = path.split(".")
    part = SCHEMA["properties"][table]
    return {**part.get("items", part)["properties"][key], "$defs": SCHEMA["$defs"]}


@pytest.mark.parametrize("path", [f"{table}.{key}" for table, keys in VALID.items() for key in keys])
def test_the_schema_accepts_every_valid_value(path: str) -> None:
    table, key = path.split(".")
    for value in VALID[table][key]:
        assert jsonschema_rs.is_valid(part_of(path), value), value
    assert "description" in part_of(path) or key == "tls"
