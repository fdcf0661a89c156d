"""What a push says: by its path, in its query, and in a body that is JSON or a form.

Scripts come with the words of the tool that they were written for. All words are in one table, so a push may use those
of any tool. Whatever cannot be understood is refused, unless the push clearly says that the service is not Up: then it
counts, and the rest is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.api.spec import parse_query
from svcnode.core.codes import known_code
from svcnode.core.strict_json import compact_json, parse_strict_json
from svcnode.core.text import MAX_REASON_CHARS, excerpt, suggestion
from svcnode.node.definition import MAX_PUSH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Pairs = list[tuple[str, str]]


class Word(NamedTuple):
    states: Mapping[str, str] = {}  # the status that a value states; "" is none
    otherwise: str | None = ""  # the status that any other value states; None if there must be no other value
    field: str = ""  # of the report, which gets any other value


WORDS = {
    "status": Word({"up": "up", "initializing": "initializing", "down": "down"}, otherwise=None),
    "reason": Word(field="reason"),
    "code": Word(field="code"),
    # Uptime Kuma, beside `status`
    "msg": Word(field="reason"),
    "ping": Word(),
    # Gatus
    "success": Word({"true": "up", "false": "down"}, otherwise=None),
    "error": Word({"": "", "false": ""}, otherwise="down", field="reason"),
    "duration": Word(),
}
ONLY_IN_QUERY = ("token", "rid", "create")  # `create` is of healthchecks.io

_FORM = re.compile(rb"(?:\w+=[^&]*&)*(?:status|success)=")
_IN_BROKEN_JSON = re.compile(rb"""["'](status|success)["']\s*:\s*["']?(\w+)""", re.IGNORECASE)


class Report(NamedTuple):
    status: str  # or the signal of the path, such as "start"
    reason: str
    code: str


@dataclass
class _Said:
    statuses: set[str] = field(default_factory=set)
    texts: dict[str, list[str]] = field(default_factory=lambda: {"reason": [], "code": []})
    problem: str = ""  # the first one

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        for name, value in pairs:
            if name in WORDS:
                self._add_word(name, value)
            elif not self.problem:
                shown = excerpt(name)
                self.problem = f'unknown parameter "{shown}"{suggestion(shown, WORDS)}'

    def _add_word(self, name: str, value: str) -> None:
        word, status = WORDS[name], _stated(name, value)
        if status is None:
            self.problem = self.problem or f"{name} must be one of {', '.join(word.states)}"
        elif status:
            self.statuses.add(status)
        if word.field and value and value not in word.states:
            self.texts[word.field].append(value)


def read_push(query: bytes, body: bytes, signal: str = "") -> Report:
    """`signal` is what the path says: a status, "start", "log" or nothing. Raises ValueError with what is wrong."""
    said = _Said({signal} if signal else set())
    parameters = parse_query(query) if query else {}
    said.add((name, value) for name in parameters if name not in ONLY_IN_QUERY for value in parameters[name])
    words, text = _read_body(body, signal)
    said.add(words)
    said.texts["reason"].append(text.decode(errors="backslashreplace"))
    if len(said.statuses) > 1:
        raise ValueError(f"it says {' and '.join(sorted(said.statuses))} at the same time")
    status, codes = next(iter(said.statuses), "up"), said.texts["code"]
    if any(known_code(code) != code for code in codes):
        said.problem = said.problem or "code must be a reason code, or begin with x_"
    if not signal and len(text) >= MAX_PUSH_BYTES and _looks_like_json(text):
        said.problem = f"a JSON body may have at most {MAX_PUSH_BYTES:,} bytes; send a log to /push/{{id}}/0"
    if said.problem and status not in ("down", "initializing"):
        raise ValueError(said.problem)
    reason = "; ".join(filter(None, said.texts["reason"]))
    return Report(status, excerpt(reason, MAX_REASON_CHARS), known_code(codes[0]) if codes else "")


def _read_body(body: bytes, signal: str) -> tuple[Pairs, bytes]:
    """The words of a body, and its text. Beside an exit status it is a log, which may only contradict a success."""
    if signal not in ("", "up"):
        return [], body
    words = _json_words(body)
    if signal:
        return [word for word in words or [] if _stated(*word)], body
    if words is not None:
        return words, b""
    if _FORM.match(body):
        return [(name, value) for name, values in parse_query(body).items() for value in values], b""
    if _looks_like_json(body):
        return [(name.decode().lower(), value.decode()) for name, value in _IN_BROKEN_JSON.findall(body)], body
    return [], body


def _looks_like_json(body: bytes) -> bool:
    return body.lstrip().startswith(b"{")


def _json_words(body: bytes) -> Pairs | None:
    """None if it is no JSON object, or one that has nothing to do with the words of a push."""
    try:
        value = parse_strict_json(body, any_text=True)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    pairs = [(name, _text(one)) for name, one in value.items()]
    is_report = value.keys() <= WORDS.keys() or any(_stated(*pair) != "" for pair in pairs)
    return pairs if is_report else None


def _text(value: Any) -> str:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value
    return compact_json(value) if value or value is False else ""


def _stated(name: str, value: str) -> str | None:
    word = WORDS.get(name, Word())
    return word.states.get(value.strip().lower(), word.otherwise)
