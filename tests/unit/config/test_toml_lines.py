from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from svcnode.config.toml_lines import TomlLines

if TYPE_CHECKING:
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
        # A key inside of a value has the line of the enclosing key, and a missing one has none.
        (("server", "listen", 1), 5),
        (("services", 0, "fall"), 12),
        (("services", 7, "id"), 12),
        (("node", "name", "x"), 2),
        ((), None),
        (("not",), None),
        (("not a table",), None),
    ],
)
def test_a_key_has_its_line(path: KeyPath, line: int | None) -> None:
    assert TomlLines(TEXT).line_of(path) == line


@pytest.mark.parametrize(
    "before",
    [
        *('# a comment with """ in it', "# it's a comment", 'a = \'"""\'', "a = \"'''\"", 'a = "\\""', 'a = """"""'),
        *('a = """"two quotes"""""', 'a = """\\""" # """', "a = ''''two quotes'''''", 'a = ["[x]", # ]\n  ["y"],\n]'),
        *("a = [\n[1],\n[[2]],\n]", "a = [ { b = ']' },\n  { b = '}' } ]", "a = '''\nb = 1\n[c]\n'''"),
        *('a = """\\\n  b = 1\n"""', "# a line separator \u2028 and its like \x85 end no line of TOML"),
        *("\r\na = 1\r", "[x]\na.b = 1", "[[x]]\n[x.y]\n[[x]]\n[x.y]"),
    ],
)
def test_the_text_before_a_key_does_not_change_its_line(before: str) -> None:
    text = f"{before}\n[here]\nkey = 1\n"
    tomllib.loads(text)  # the example must be valid TOML
    assert TomlLines(text).line_of(("here", "key")) == text.count("\n")


@pytest.mark.parametrize("key", ['"name"', "'name'", '"na\\u006de"', '"\\U0000006eame"'])
def test_a_key_is_found_with_any_quoting_and_quotes_inside_belong_to_it(key: str) -> None:
    assert TomlLines(f"\n[ 'no.de' . {key} ]\n").line_of(("no.de", "name")) == 2
    lines = TomlLines("\"'a'\" = 1\n'\"a\"' = 2\na = 3\n")
    assert [lines.line_of((key,)) for key in ("'a'", '"a"', "a")] == [1, 2, 3]
