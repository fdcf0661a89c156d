"""How to fix a service, from its reason codes and the table of remedies."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from svcnode.cli.terminal.explain.observers import listed_names
from svcnode.cli.terminal.explain.remedies import CUSTOM_CODE_MEANING, REMEDIES
from svcnode.core.codes import ReasonCode, is_custom_code
from svcnode.core.model import Outcome, Status
from svcnode.core.redaction import MASK
from svcnode.core.text import toml_value
from svcnode.core.url import Url, UrlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli.terminal.explain.details import ParsedDetails
    from svcnode.cli.terminal.explain.remedies import Remedy

_DEFAULT_TIMEOUT_S = 3.0  # of `svcnode probe`
_MORE_ARGS = " …"
_PROGRESS_CODES = {ReasonCode.STARTING, ReasonCode.SYNCING, ReasonCode.LAGGING}
_CODES_OF_THE_NODE = {  # of a service that reports its status
    ReasonCode.NO_EVIDENCE,
    ReasonCode.NOT_STARTED,
    ReasonCode.STALE,
    ReasonCode.TTL_EXPIRED,
    ReasonCode.REGISTRY_LOST,
}
_SAME_KINDS = {"https": "http", "mariadb": "mysql", "postgres": "postgresql"}


def hint_texts(details: ParsedDetails) -> Iterator[str]:
    is_up = details.status is Status.UP
    if details.is_fixed or (is_up and (details.last_outcome in (None, Outcome.READY) or details.is_from_registry)):
        return
    if details.is_decided_by_replicas:
        yield from _replica_hints(details)
        return
    if not details.is_probed:
        # Any other code is one that the program gave, whose log says more than advice about a probe.
        yield advice_text(details.code if details.code in _CODES_OF_THE_NODE else ReasonCode.REPORTED, details)
        return
    if details.last_outcome is Outcome.READY:
        is_state_bad = details.code in (ReasonCode.STALE, ReasonCode.UNRELIABLE)
        yield advice_text(details.code, details) if is_state_bad else "Nothing: the last check succeeded."
        return
    codes = [*([details.code] if details.code == ReasonCode.UNRELIABLE else []), *codes_to_fix(details)]
    yield from dict.fromkeys(advice_text(code, details) for code in codes)
    if details.probe is not None:
        command = _service_command(details) if details.config_file else _probe_command(details.probe, details)
        yield f"To run the check by hand, on the node's machine: {command}"


def _replica_hints(details: ParsedDetails) -> Iterator[str]:
    yield advice_text(details.code, details)
    if details.code == ReasonCode.OBSERVERS_DISAGREE:
        bad = (each.code for each in details.observed if each.status is not Status.UP)
        yield from dict.fromkeys(advice_text(code, details) for code in bad)
    if details.probe is not None and details.checked_by:
        plural = "" if len(details.checked_by) == 1 else "s"
        machines = f"the machine{plural} of {listed_names(details.checked_by)}"
        yield f"To run the check by hand, on {machines}: {_probe_command(details.probe, details)}"


def codes_to_fix(details: ParsedDetails) -> Iterator[str]:
    if not details.recent_checks:
        yield details.code
        return
    newest = details.recent_checks[0]
    is_failure = newest.outcome is Outcome.FAILED
    # Waiting helps only if the service reports progress.
    yield ReasonCode.OTHER if is_failure and newest.code in _PROGRESS_CODES else newest.code
    if newest.outcome is Outcome.UNKNOWN and details.status is Status.DOWN and details.code != ReasonCode.STALE:
        yield details.code  # the check cannot run now; this is why the service was Down before


def advice_text(code: str, details: ParsedDetails) -> str:
    address = _address(details.probe)
    return _advice(find_remedy(code), details.kind).format(
        address=address,
        host=_host(details.probe) or address,
        timeout=f"{details.timeout_s or 0:g} s",
        id=details.id,
    )


def meaning_text(code: str) -> str:
    return CUSTOM_CODE_MEANING if is_custom_code(code) else find_remedy(code).meaning


def find_remedy(code: str) -> Remedy:
    """The remedy of `other` for a code of another package (`x_…`)."""
    return REMEDIES[ReasonCode(code) if code in REMEDIES else ReasonCode.OTHER]


def _advice(remedy: Remedy, kind: str) -> str:
    kinds = [_SAME_KINDS.get(part, part) for part in kind.split("+")]  # "svc+https" is a kind of "svc" and of "http"
    return next((remedy.by_kind[part] for part in kinds if part in remedy.by_kind), remedy.advice)


def _address(probe: str | None) -> str:
    """host:port as in the URL of the probe."""
    if probe is None:
        return "the address of the service"
    url = _parse_url(probe)
    if url is None or not url.host:
        return probe
    return url.host_port if url.port is not None else f"{url.host_port} (default port of {url.scheme})"


def _host(probe: str | None) -> str | None:
    url = _parse_url(probe or "")
    return url.host if url is not None and url.host else None


def _parse_url(probe: str) -> Url | None:
    try:
        return Url.parse(probe, register_secrets=False)
    except UrlError:
        return None


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
