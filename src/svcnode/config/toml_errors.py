"""The errors of tomllib in plain words, with the line, and with the key if it is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from svcnode.config.toml_lines import first_key
from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_NOT_CLOSED = "a text is not closed; add the quotation mark at its end"
_BACKSLASH = r"a backslash in a text is written \\; or put the text into single quotation marks"
# From the messages of tomllib; {0} is the first group, {key} the key on that line.
_PLAIN = {
    r"Illegal character '\\n'": _NOT_CLOSED,
    r"Illegal character (.*)": "the control character {0} must not be in a text or a comment",
    r"Unterminated string|Expected [\"']+": _NOT_CLOSED,
    r"Cannot overwrite a value": "{key} is there twice; remove one of the two",
    r"Duplicate inline table key '(.*)'": 'the key "{0}" is there twice; remove one of the two',
    r"Cannot declare \((.*)\) twice": "the table [{0}] is there twice; put all its keys into one",
    r"Cannot (?:mutate immutable|redefine) namespace \((.*)\)": "{0} has its value already, so nothing can be added",
    r"Expected '=' after a key.*": '"=" is missing after the key',
    r"Expected newline or end of document.*": "the line goes on after the value; a text needs quotation marks",
    r"Invalid value": "there is no valid value here; a text needs quotation marks",
    r"Expected '(\]+)' at the end.*": 'the name of the table must end with "{0}"',
    r"Unclosed array": 'a list needs commas between its values, and "]" at its end',
    r"Unclosed inline table": 'a table in braces needs commas between its keys, and "}}" at its end',
    r"Invalid initial character for a key part": "a key is missing here; a table in braces is on one line, with no "
    "comma at its end",
    r"Unescaped '\\' in a string|Invalid hex value": _BACKSLASH,
    r"Invalid statement": "a line must be a comment, a table in brackets, or a key with its value",
}


class _Message(NamedTuple):
    text: str
    line: int | None
    column: int | None


def toml_error(file: Path, text: str, message: str) -> ConfigError:
    """`text` is the content of the file, `message` that of tomllib."""
    found = _parse(message, text)
    plain = _plain_text(found, text)
    if found.line is None:  # a text that is not closed ends with the file, and may begin anywhere
        return ConfigError(f"invalid TOML: {plain} ({file})", file=file)
    column = "" if found.column is None else f", at column {found.column}"
    return ConfigError(f"invalid TOML: {plain}{column} ({file}:{found.line})", file=file, line=found.line)


def _parse(message: str, text: str) -> _Message:
    if match := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL):
        return _Message(match[1], int(match[2]), int(match[3]))
    message = message.removesuffix(" (at end of document)")
    last_line = len(text.rstrip().splitlines())
    return _Message(message, None if _plain(message, "") == _NOT_CLOSED else last_line, None)


def _plain_text(found: _Message, text: str) -> str:
    key = "" if found.line is None else first_key(text.split("\n")[found.line - 1])
    return _plain(found.text, f'the key "{key}"' if key else "a key")


def _plain(message: str, key: str) -> str:
    for pattern, plain in _PLAIN.items():
        if match := re.fullmatch(pattern, message, re.DOTALL):
            names = [_dotted(group) for group in match.groups()]
            return plain.format(*names, key=key)
    return message


def _dotted(name: str) -> str:
    """From the tuple ('server', 'tls') in a message: server.tls."""
    return ".".join(re.findall(r"'([^']*)'", name)) if re.search(r"',", name) else name
