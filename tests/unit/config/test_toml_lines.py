from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.config.toml_lines import TomlLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.config.keys import KeyPath

TEXT = """\
[node]                     # 1
name = "validator-7"

[server]                   # 4
listen = [
  "127.0.0.1:8420",
  "[::1]:8420",
]
tls.certificate = "a.pem"  # 9
tls.key = "a.key"

[[services]]               # 12
id = "db"
probe = "sqlite:ledger.db"

[[services]]               # 16
id = "indexer"
description = '''
[not a table]
not = "a key"
'''
status = "Up"              # 22
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("node",), 1),
        (("node", "name"), 2),
        (("server", "listen"), 5),
        (("server", "tls"), 9),
        (("server", "tls", "key"), 10),
        (("services",), 12),
        (("services", 0), 12),
        (("services", 0, "probe"), 14),
        (("services", 1), 16),
        (("services", 1, "id"), 17),
        (("services", 1, "status"), 22),
    ],
)
def test_a_key_has_its_line(path: KeyPath, line: int) -> None:
    assert TomlLines(TEXT).line_of(path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("server", "listen", 1), 5),
        (("services", 0, "fall"), 12),
        (("services", 7, "id"), 12),
        (("node", "name", "x"), 2),
    ],
)
def test_a_key_inside_a_value_has_the_line_of_the_enclosing_key(path: KeyPath, line: int) -> None:
    assert TomlLines(TEXT).line_of(path) == line


@pytest.mark.parametrize("path", [(), ("store",), ("not",), ("not a table",)])
def test_a_missing_key_has_no_line(path: KeyPath) -> None:
    assert TomlLines(TEXT).line_of(path) is None


@pytest.mark.parametrize(
    "before",
    [
        '# a comment with """ in it',
        "# it's a comment",
        'a = \'"""\'',
        "a = \"'''\"",
        'a = "\\""',
        'a = """"""',
        'a = """"two quotes"""""',
        'a = """\\""" # """',
        "a = ''''two quotes'''''",
        'a = ["[x]", # ]\n  ["y"],\n]',
        "a = [\n[1],\n[[2]],\n]",
        "a = [ { b = ']' },\n  { b = '}' } ]",
        "a = '''\nb = 1\n[c]\n'''",
        'a = """\\\n  b = 1\n"""',
        "# a line separator \u2028 and its like \x85 end no line of TOML",
        "\r\na = 1\r",
        "[x]\na.b = 1",
        "[[x]]\n[x.y]\n[[x]]\n[x.y]",
    ],
)
def test_the_text_before_a_key_does_not_change_its_line(before: str) -> None:
    text = f"{before}\n[here]\nkey = 1\n"
    tomllib.loads(text)  # the example must be valid TOML
    assert TomlLines(text).line_of(("here", "key")) == text.count("\n")


@pytest.mark.parametrize("key", ['"name"', "'name'", '"na\\u006de"', '"\\U0000006eame"'])
def test_a_key_is_found_with_any_quoting(key: str) -> None:
    assert TomlLines(f"\n[ 'no.de' . {key} ]\n").line_of(("no.de", "name")) == 2


def test_quotes_inside_a_quoted_key_belong_to_the_key() -> None:
    lines = TomlLines("\"'a'\" = 1\n'\"a\"' = 2\na = 3\n")
    assert [lines.line_of((key,)) for key in ("'a'", '"a"', "a")] == [1, 2, 3]


# ---- generated documents


@dataclass
class Draft:
    """A document that is being written, and the line on which each of its keys is first named."""

    text: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def write(self, path: KeyPath, statement: str) -> None:
        line = self.text.count("\n") + 1
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)
        self.text += f"{statement}\n"


# Everything that ends, opens or hides something in TOML, and line separators that TOML does not treat as line ends.
ODD = st.sampled_from([*"\"'\\[]{}#=.,\t \u2028\x85", '"""', "'''", "[[x]]", "a = 1"])
CHARACTERS = st.characters(exclude_categories=("Cs", "Cc"))
LINE = st.lists(ODD | CHARACTERS, max_size=8).map("".join)
LINES = st.lists(ODD | CHARACTERS | st.just("\n"), max_size=12).map("".join)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def long_quoted(text: str) -> str:
    return '"""' + text.replace("\\", "\\\\").replace('"""', '""\\"') + '"""'


def literal(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def long_literal(text: str) -> str:
    while "'''" in text:
        text = text.replace("'''", "''")
    return f"'''{text}'''"


def array(values: list[str], comment: str) -> str:
    return "[ # " + comment + "\n" + "".join(f"  {value}, # {comment}\n" for value in values) + "]"


def inline_table(values: list[str]) -> str:
    return "{ " + ", ".join(f"k{index} = {value}" for index, value in enumerate(values)) + " }"


ONE_LINE_VALUES = st.sampled_from(["1", "true", "2026-01-01"]) | LINE.map(quoted) | LINE.map(literal)
VALUES = st.recursive(
    ONE_LINE_VALUES | LINES.map(long_quoted) | LINES.map(long_literal),
    lambda inner: st.builds(array, st.lists(inner, max_size=3), LINE),
    max_leaves=4,
) | st.lists(ONE_LINE_VALUES, max_size=2).map(inline_table)

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True) | LINE


def written_key(name: str, styles: Callable[[], bool]) -> str:
    is_bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if is_bare and styles():
        return name
    return literal(name) if "'" not in name and styles() else quoted(name)


@st.composite
def documents(draw: st.DrawFn) -> Draft:
    draft = Draft()

    def style() -> bool:
        return draw(st.booleans())

    def key(name: str) -> str:
        return written_key(name, style)

    def fill(table: KeyPath, names: list[str]) -> None:
        for name in names:
            for _ in range(draw(st.integers(0, 2))):
                draft.write((), draw(LINE.map(lambda text: f"# {text}") | st.just("") | st.just(" \t")))
            inner = draw(st.none() | NAMES)
            path: KeyPath = (*table, name) if inner is None else (*table, name, inner)
            written = key(name) if inner is None else f"{key(name)} . {key(inner)}"
            draft.write(path, f"{draw(st.sampled_from(['', '  ']))}{written} = {draw(VALUES)} # {draw(LINE)}")

    names = st.lists(NAMES, max_size=3, unique=True)
    tables = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    fill((), [name for name in draw(names) if name not in tables])
    for table in tables:
        if style():
            draft.write((table,), f"[{key(table)}] # {draw(LINE)}")
            fill((table,), draw(names))
            continue
        for index in range(draw(st.integers(1, 3))):
            draft.write((table, index), f"[[ {key(table)} ]]")
            inside = draw(names)
            fill((table, index), inside)
            inner = draw(NAMES)
            if inner not in inside:
                draft.write((table, index, inner), f"[ {key(table)} . {key(inner)} ]")
                fill((table, index, inner), draw(names))
    return draft


@settings(deadline=None, max_examples=40)
@given(documents())
def test_every_key_of_a_document_has_the_first_line_that_contains_it(draft: Draft) -> None:
    data = tomllib.loads(draft.text)
    lines = TomlLines(draft.text)
    for path, line in draft.lines.items():
        value: Any = data
        for key in path:
            value = value[key]  # the generated key exists
        assert lines.line_of(path) == line
