"""What `svcnode probe` does: looks, and shows what was seen."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from svcnode.cli.durations import positive_s
from svcnode.cli.showing import show
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.core.wording import one_line
from svcnode.look import let_go, look_once
from svcnode.probes import make_probe
from svcnode.probes.tools.steps import Step, recorded

if TYPE_CHECKING:
    import argparse

EXIT_CODES = {Outcome.READY: 0, Outcome.NOT_READY: 1, Outcome.FAILED: 2, Outcome.UNKNOWN: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    at: datetime
    verdict: Verdict
    duration_s: float
    steps: list[Step]


class _ProbeRun:
    """What to look at, and how; made from the arguments, which may be wrong."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        allowed = {"allow_exec"} if arguments.allow_exec else ()
        self._probe = make_probe({**_options(arguments.option), "url": arguments.url}, allowed=allowed)
        self._timeout_s = positive_s("--timeout", arguments.timeout)
        latency = arguments.max_latency
        self._max_latency_s = None if latency is None else positive_s("--max-latency", latency)
        self.interval_s = positive_s("--interval", arguments.interval)

    @property
    def what(self) -> str:
        return redacted(str(getattr(self._probe, "url", self._probe)))

    async def look(self) -> _Seen:
        at, began_s = datetime.now().astimezone(), time.perf_counter()
        with recorded() as steps:
            verdict, _ = await look_once(self._probe, self._timeout_s, self._max_latency_s)
        return _Seen(at=at, verdict=verdict, duration_s=time.perf_counter() - began_s, steps=steps)

    async def look_and_let_go(self) -> _Seen:
        async with self:
            return await self.look()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        let_go(self._probe)


def show_look(arguments: argparse.Namespace) -> int:
    """One look; returns the exit code that says what was seen."""
    looker = _ProbeRun(arguments)
    seen = asyncio.run(looker.look_and_let_go())
    with suppress(BrokenPipeError):
        show(_as_json(looker.what, seen) if arguments.json else _in_full(looker.what, seen), sys.stdout)
    return EXIT_CODES[seen.verdict.outcome]


def show_looks(arguments: argparse.Namespace) -> int:
    """Look after look, until somebody stops it or nobody reads it; returns what the last one came to."""
    looker = _ProbeRun(arguments)
    shown = _as_json if arguments.json else _as_line
    code = EXIT_CODES[Outcome.UNKNOWN]

    async def keep_looking() -> None:
        nonlocal code
        async with looker:
            while True:
                seen = await looker.look()
                code = EXIT_CODES[seen.verdict.outcome]
                show(shown(looker.what, seen), sys.stdout)
                await asyncio.sleep(max(0.0, looker.interval_s - seen.duration_s))

    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(keep_looking())
    return code


def _options(given: list[str]) -> dict[str, Any]:
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidValueError(f'"{text}" is not an option; write its name, =, and its value')
        if name == "url":
            raise InvalidValueError("url: stands alone, as the first word, and is no option")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:  # noqa: ANN401  whatever TOML can hold
    """As TOML has it; what is no TOML is a string that lacks its quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if document.keys() == {"value"} else text


# ---- what is shown


def _as_json(what: str, seen: _Seen) -> str:
    return json.dumps(
        {
            "time": seen.at.isoformat(timespec="milliseconds"),
            "url": what,
            "verdict": seen.verdict.outcome.value,
            "reason": seen.verdict.reason,
            "duration_ms": round(seen.duration_s * 1000, 3),
            "steps": [
                {
                    "name": step.name,
                    "detail": redacted(step.detail),
                    "duration_ms": round(step.duration_s * 1000, 3),
                    "done": step.is_done,
                }
                for step in seen.steps
            ],
        }
    )


def _as_line(what: str, seen: _Seen) -> str:
    reason = f"  {one_line(seen.verdict.reason)}" if seen.verdict.reason else ""
    return f"{seen.at:%H:%M:%S}  {_spoken(seen.verdict):9}  {_milliseconds(seen.duration_s):>10}{reason}"


def _in_full(what: str, seen: _Seen) -> str:
    reason = f": {one_line(seen.verdict.reason)}" if seen.verdict.reason else ""
    rows = [(step.name, step.duration_s, _described(step)) for step in seen.steps]
    rows.append(("in all", seen.duration_s, one_line(what)))
    lines = [f"  {name:9} {_milliseconds(duration_s):>10}  {text}".rstrip() for name, duration_s, text in rows]
    return "\n".join([f"{_spoken(seen.verdict)}{reason}", *lines])


def _described(step: Step) -> str:
    words = [one_line(redacted(step.detail)), "" if step.is_done else "(not done)"]
    return " ".join(filter(None, words))


def _spoken(verdict: Verdict) -> str:
    return verdict.outcome.value.replace("_", " ")


def _milliseconds(duration_s: float) -> str:
    return f"{duration_s * 1000:.1f} ms"
