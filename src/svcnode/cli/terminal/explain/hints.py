"""How to fix a service, from its reason codes and the table of remedies."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from svcnode.cli.terminal.explain.observers import listed_names
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Status
from svcnode.core.redaction import MASK
from svcnode.core.remedies import advice_text, advised_code
from svcnode.core.text import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli.terminal.explain.details import ParsedDetails

_DEFAULT_TIMEOUT_S = 3.0  # of `svcnode probe`
_MORE_ARGS = " …"


def hint_texts(details: ParsedDetails) -> Iterator[str]:
    is_up = details.status is Status.UP
    if details.is_fixed or (is_up and (details.last_outcome in (None, Outcome.READY) or details.is_from_registry)):
        return
    if details.is_decided_by_replicas:
        yield from _replica_hints(details)
        return
    if not details.is_probed:
        yield _advice(advised_code(details.code, is_probed=False, is_failure=not is_up), details)
        return
    if details.last_outcome is Outcome.READY:
        is_state_bad = details.code in (ReasonCode.STALE, ReasonCode.CANNOT_CHECK, ReasonCode.UNRELIABLE)
        yield _advice(details.code, details) if is_state_bad else "Nothing: the last check succeeded."
        return
    codes = [*([details.code] if details.code == ReasonCode.UNRELIABLE else []), *codes_to_fix(details)]
    yield from dict.fromkeys(_advice(code, details) for code in codes)
    if details.probe is not None:
        command = _service_command(details) if details.config_file else _probe_command(details.probe, details)
        yield f"To run the check by hand, on the node's machine: {command}"


def _replica_hints(details: ParsedDetails) -> Iterator[str]:
    yield _advice(details.code, details)
    if details.code == ReasonCode.OBSERVERS_DISAGREE:
        bad = (each.code for each in details.observed if each.status is not Status.UP)
        yield from dict.fromkeys(_advice(code, details) for code in bad)
    if details.probe is not None and details.checked_by:
        plural = "" if len(details.checked_by) == 1 else "s"
        machines = f"the machine{plural} of {listed_names(details.checked_by)}"
        yield f"To run the check by hand, on {machines}: {_probe_command(details.probe, details)}"


def codes_to_fix(details: ParsedDetails) -> Iterator[str]:
    if not details.recent_checks:
        yield details.code
        return
    newest = details.recent_checks[0]
    yield advised_code(newest.code, is_probed=True, is_failure=newest.outcome is Outcome.FAILED)
    is_stale = details.code in (ReasonCode.STALE, ReasonCode.CANNOT_CHECK)
    if newest.outcome is Outcome.UNKNOWN and details.status is Status.DOWN and not is_stale:
        yield details.code  # the check cannot run now; this is why the service was Down before


def _advice(code: str, details: ParsedDetails) -> str:
    return advice_text(code, details.id, details.kind, details.probe, details.timeout_s)


def _service_command(details: ParsedDetails) -> str:
    """With the options and secrets of the configuration."""
    return shlex.join(["svcnode", "probe", "--service", details.id, "--config", details.config_file or ""])


def _probe_command(probe: str, details: ParsedDetails) -> str:
    command = ["svcnode", "probe", shlex.quote(probe)]
    if probe.startswith("exec:"):
        command.append("--allow-exec")
        if probe.endswith(_MORE_ARGS):  # a node shows only the first item of argv
            program = json.dumps(probe.removeprefix("exec:").removesuffix(_MORE_ARGS), ensure_ascii=False)
            command[2:] = ["exec:", "--allow-exec", "--option", shlex.quote(f"argv=[{program}, …]")]
    if details.timeout_s is not None and details.timeout_s != _DEFAULT_TIMEOUT_S:
        command.append(f"--timeout {details.timeout_s:g}s")
    if details.max_latency_s is not None:
        command.append(f"--max-latency {details.max_latency_s:g}s")
    options = details.options or {}
    # The program is in the URL.
    command += [f"--option {_option_arg(name, value)}" for name, value in options.items() if name != "argv"]
    return " ".join(command) + _command_note(" ".join(command), has_options=details.options is not None)


def _option_arg(name: str, value: object) -> str:
    return shlex.quote(f"{name}={value if value == MASK else toml_value(value)}")


def _command_note(command: str, *, has_options: bool) -> str:
    notes = []
    if MASK in command:
        notes.append(f"the values for {MASK} are in the configuration")
    if not has_options:
        notes.append("add the options of the probe as --option KEY=VALUE")
    text = "; ".join(notes)
    return f" ({text[0].upper()}{text[1:]}.)" if text else ""
