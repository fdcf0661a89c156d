"""What was found, as text for the terminal and as JSON that can be attached to a report about a problem."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.cli.inspection.addresses import Access, exposures
from svcnode.cli.inspection.finding import Finding, Level, next_steps
from svcnode.cli.inspection.network import address_kind
from svcnode.core.model import SPEC_VERSION
from svcnode.core.redaction import MASK, redacted
from svcnode.probes.base import UrlProbe
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from svcnode.cli.inspection.addresses import Exposure
    from svcnode.cli.inspection.subject import Subject
    from svcnode.config import Settings

_USER_OF_URL = re.compile(r"://[^\s/?#@]*@")
_ACCESS_TEXTS = {
    Access.OPEN: "without a token",
    Access.TOKEN: "with the token",
    Access.REFUSED: "refused, because no token is set",
    Access.FILE: "for the users that its permissions allow",
}


# ---- text


def report_lines(subject: Subject, findings: Sequence[Finding]) -> Iterator[str]:
    yield "Exposed:"
    yield from (f"  {_exposure_text(exposure)}" for exposure in exposures(subject.settings))
    if subject.evidence.lookups:
        yield "Names:"
        for name, found in subject.evidence.lookups.items():
            yield f"  {name}: {found.problem or _address_text(found.addresses)}"
    yield f"Found: {_count_text(findings)}"
    for finding in findings:
        where = f"{finding.key} ({finding.place})" if finding.key and finding.place else finding.key or finding.place
        yield f"  {finding.level}: {finding.what} [{finding.code}]"
        yield from (f"    {label}: {text}" for label, text in (("where", where), ("fix", finding.fix)) if text)
    yield "Next steps:"
    yield from (f"  {number}. {step}" for number, step in enumerate(next_steps(findings), start=1))


def _exposure_text(exposure: Exposure) -> str:
    reach = "this machine only" if exposure.is_local else "other machines, too"
    tls = ", TLS" if exposure.is_encrypted else ""
    paths = " ".join(exposure.paths)
    return f"{exposure.address} ({reach}{tls}): {exposure.surface}, {_ACCESS_TEXTS[exposure.access]}: {paths}"


def _address_text(addresses: Iterable[str]) -> str:
    return ", ".join(f"{address} ({address_kind(address)})" for address in addresses)


def _count_text(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return ", ".join(f"{level}s: {count}" for level, count in counts.items())


# ---- JSON


def json_report(subject: Subject, findings: Sequence[Finding]) -> str:
    settings, evidence = subject.settings, subject.evidence
    kinds = {
        service.id: "" if service.definition.probe_config is None else service.definition.probe_config.probe.kind
        for service in settings.services
    }
    fields = {
        "valid": True,
        "configuration": None if settings.file is None else str(settings.file),
        "node": {"name": settings.node_name, "version": settings.node_version},
        "checked": [
            {
                "service": service_id,
                "kind": kinds[service_id],
                "outcome": verdict.outcome.value,
                "code": verdict.code,
                "reason": verdict.reason,
                "duration_ms": round(duration_s * 1000, 3),
            }
            for service_id, verdict, duration_s in evidence.checked
        ],
        "names": [
            {
                "name": name,
                "addresses": [{"address": one, "kind": address_kind(one)} for one in found.addresses],
                "problem": found.problem,
                "duration_ms": round(found.duration_s * 1000, 3),
            }
            for name, found in evidence.lookups.items()
        ],
        "exposed": [
            {
                "address": exposure.address,
                "local": exposure.is_local,
                "tls": exposure.is_encrypted,
                "surface": exposure.surface,
                "paths": list(exposure.paths),
                "access": exposure.access.value,
            }
            for exposure in exposures(settings)
        ],
    }
    return _document(fields, findings, _user_names(settings))


def json_report_of_errors(file: Path | None, findings: Sequence[Finding]) -> str:
    return _document({"valid": False, "configuration": None if file is None else str(file)}, findings, [])


def _document(fields: dict[str, Any], findings: Sequence[Finding], user_names: Sequence[str]) -> str:
    versions = {"svcnode": __version__, "interface": SPEC_VERSION, "python": platform.python_version()}
    found = [
        {"code": one.code.value, "level": one.level.value}
        | {"key": one.key, "place": one.place, "what": one.what, "fix": one.fix}
        for one in findings
    ]
    document = {**versions, "platform": sys.platform, **fields, "findings": found, "next_steps": next_steps(findings)}
    return json.dumps(without_secrets(document, user_names), indent=2)


def _user_names(settings: Settings) -> list[str]:
    """The users of the services: the error of a server may contain one."""
    names: set[str] = set()
    for service in settings.services:
        config = service.definition.probe_config
        if config is not None and isinstance(config.probe, UrlProbe):
            names |= {config.probe.url.username, getattr(config.probe, "username", "")}
    for registry in (settings.sharing and settings.sharing.registry, settings.fleet and settings.fleet.registry):
        names.add(registry.username if registry else "")
    return sorted(names - {""}, key=len, reverse=True)


# Fields with free text. In others, such as an id, a name is a name.
_TEXTS = ("reason", "what", "fix", "next_steps")


def without_secrets(value: Any, user_names: Sequence[str], field: str = "") -> Any:  # noqa: ANN401  any JSON value
    """The text without secrets, without the users in URLs, and without the name of this machine's user."""
    match value:
        case dict():
            return {key: without_secrets(inner, user_names, key) for key, inner in value.items()}
        case list():
            return [without_secrets(inner, user_names, field) for inner in value]
        case str():
            text = _USER_OF_URL.sub("://", redacted(value))
            for name in user_names if field in _TEXTS else ():
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", MASK, text)
            return _without_home(text)
        case _:
            return value


def _without_home(text: str) -> str:
    try:
        home = str(Path.home())
    except RuntimeError:  # this user has none
        return text
    return re.sub(rf"{re.escape(home)}(?=/|$)", "~", text) if len(home) > 1 else text
