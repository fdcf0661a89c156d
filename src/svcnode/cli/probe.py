"""`svcnode probe URL` or `svcnode probe --service ID`: check a service once, or repeatedly, and show every step."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svcnode.cli._args import EXIT_BAD, EXIT_PARTIAL, EXIT_UNKNOWN, add_config_option, positive_duration_s
from svcnode.cli._checks import milliseconds_text, outcome_text, run_quietly
from svcnode.cli.output import show
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line, sanitize
from svcnode.core.units import iso_time, utc_text
from svcnode.net.trace import Step, record_steps
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser

DEFAULT_INTERVAL, DEFAULT_TIMEOUT_S = "1s", 3.0
ALLOW_EXEC_VARIABLE = "SVCNODE_SECURITY_ALLOW_EXEC"
_EPILOG = """\
exit codes:
  0  ready
  1  not ready
  2  invalid arguments or configuration
  3  failed
  4  unknown: this machine could not check

examples:
  svcnode probe http://127.0.0.1:8080/health
  svcnode probe postgresql://monitor@127.0.0.1/ledger --option max_lag=10s
  svcnode probe --service db-1 --watch
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Find out whether a probe works: check a service once, and show the outcome, its reason, the duration and "
        "every step. Name the URL of a probe, or a service of the configuration with --service; then the options, "
        "secrets and limits of the configuration apply."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="URL of the probe; its scheme selects the kind")
    add("--service", metavar="ID", help="check this service of the configuration, instead of a URL")
    add_config_option(parser)
    add(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the probe, written as in TOML; may be repeated",
    )
    add(
        "--timeout",
        metavar="DURATION",
        help="how long a check may take (default: as configured for the service, or 3s)",
    )
    add("--max-latency", metavar="DURATION", help="a check that succeeds but takes longer than this is not ready")
    add("--allow-exec", action="store_true", help="allow an exec: probe to run its program")
    add("--json", action="store_true", help="print one JSON object per check")
    add("--watch", action="store_true", help="repeat the check until Ctrl-C")
    add("--interval", metavar="DURATION", help="with --watch: time between checks (default: 1s)")


EXIT_CODES = {
    Outcome.READY: 0,
    Outcome.NOT_READY: EXIT_PARTIAL,
    Outcome.FAILED: EXIT_BAD,
    Outcome.UNKNOWN: EXIT_UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProbeResult:
    at_s: float  # wall clock
    verdict: Verdict
    duration_s: float
    steps: list[Step]


class _ProbeRun:
    """A probe and its limits, from the arguments."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._max_latency_s: float | None
        if arguments.service is None:
            self._use_url(arguments)
        else:
            self._use_service(arguments)
        if arguments.timeout is not None:
            self._timeout_s = positive_duration_s("--timeout", arguments.timeout)
        if arguments.max_latency is not None:
            self._max_latency_s = positive_duration_s("--max-latency", arguments.max_latency)
        interval = arguments.interval
        if interval is not None and not arguments.watch:
            raise InvalidValueError("--interval: only works with --watch")
        self.interval_s = positive_duration_s("--interval", DEFAULT_INTERVAL if interval is None else interval)

    def _use_url(self, arguments: argparse.Namespace) -> None:
        if arguments.url is None:
            arguments.parser.error("nothing to check: name a URL, or a service of the configuration with --service")
        allowed = {"allow_exec"} if arguments.allow_exec else ()
        self.probe = make_probe({**_options(arguments.option), "url": arguments.url}, allowed=allowed)
        self._timeout_s, self._max_latency_s = DEFAULT_TIMEOUT_S, None

    def _use_service(self, arguments: argparse.Namespace) -> None:
        from svcnode.config import find_node_file, load_service

        for name, value in (("a URL", arguments.url), ("--option", arguments.option)):
            if value:
                raise InvalidValueError(f"--service: cannot be used with {name}")
        environ = {**os.environ, **({ALLOW_EXEC_VARIABLE: "true"} if arguments.allow_exec else {})}
        config = load_service(find_node_file(arguments.config), environ, arguments.service).definition.probe_config
        if config is None:
            raise InvalidValueError(
                f'--service: the node does not check "{arguments.service}": it has a fixed status, or sends heartbeats'
            )
        self.probe, self._timeout_s, self._max_latency_s = config.probe, config.schedule.timeout_s, config.max_latency_s

    async def check(self) -> _ProbeResult:
        at_s, started_s = time.time(), time.perf_counter()
        with record_steps() as steps:
            verdict, _ = await run_check(self.probe, self._timeout_s, self._max_latency_s)
        return _ProbeResult(at_s=at_s, verdict=verdict, duration_s=time.perf_counter() - started_s, steps=steps)


def run_command(arguments: argparse.Namespace) -> int:
    """Checks once, or until Ctrl-C or until the reader of the output is gone; returns the code of the last check."""
    run = _ProbeRun(arguments)
    format_result = _format_json if arguments.json else _format_line if arguments.watch else _format_full
    code = EXIT_UNKNOWN

    async def check() -> None:
        nonlocal code
        try:
            while True:
                result = await run.check()
                code = EXIT_CODES[result.verdict.outcome]
                show(format_result(run.probe.display_url or "", result), sys.stdout)
                if not arguments.watch:
                    return
                await asyncio.sleep(max(0.0, run.interval_s - result.duration_s))
        finally:
            close_probe(run.probe)

    try:
        run_quietly(check())
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        if not arguments.watch:
            raise
    return code


def _options(texts: list[str]) -> dict[str, Any]:
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidValueError(f'--option: must be KEY=VALUE, such as redirects=2, not "{text}"')
        if name == "url":
            raise InvalidValueError("--option: url is not an option; give the URL as the argument")
        options[name] = _toml_value(value)
    return options


def _toml_value(text: str) -> Any:  # noqa: ANN401  any TOML value
    """The text as a TOML value; text that is not TOML is a string without quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if document.keys() == {"value"} else text


# ---- output


def _format_json(url: str, result: _ProbeResult) -> str:
    return json.dumps(
        {
            "time": iso_time(result.at_s),
            "url": url,
            "outcome": result.verdict.outcome.value,
            "code": result.verdict.code,
            "reason": result.verdict.reason,
            "duration_ms": round(result.duration_s * 1000, 3),
            "steps": [
                {
                    "name": step.name,
                    "detail": redacted(step.detail),
                    "duration_ms": round(step.duration_s * 1000, 3),
                    "done": step.is_done,
                }
                for step in result.steps
            ],
        }
    )


def _format_line(url: str, result: _ProbeResult) -> str:
    reason = f"  {one_line(result.verdict.reason)}" if result.verdict.reason else ""
    at = utc_text(result.at_s, result.at_s)
    return f"{at}  {outcome_text(result.verdict):9}  {milliseconds_text(result.duration_s):>10}{reason}"


def _format_full(url: str, result: _ProbeResult) -> str:
    reason = f": {one_line(result.verdict.reason)}" if result.verdict.reason else ""
    rows = [(step.name, step.duration_s, _step_text(step)) for step in result.steps]
    rows.append(("total", result.duration_s, one_line(url)))
    lines = [f"  {name:9} {milliseconds_text(duration_s):>10}  {text}".rstrip() for name, duration_s, text in rows]
    return "\n".join([f"{outcome_text(result.verdict)}{reason}", *lines])


def _step_text(step: Step) -> str:
    parts = [sanitize(step.detail), "" if step.is_done else "(not completed)"]
    return " ".join(filter(None, parts))
