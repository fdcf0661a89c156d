"""A service that a program registers through the control socket: the same keys and errors as in the file.

A program that may register services is not necessarily allowed what the node is allowed. So a probe may not run
programs, read files or use secrets of the node, unless `allow_exec` is set in [control].
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from svcnode.config.schema import KeyPath, RegisteredServiceTable
from svcnode.config.settings import service_from
from svcnode.config.sources import Source
from svcnode.config.validate import validate_value
from svcnode.core.errors import ConfigError, InvalidValueError, OptionError
from svcnode.core.model import validate_service_id
from svcnode.probes import make_probe, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.config.schema import ServiceTable
    from svcnode.config.settings import Settings
    from svcnode.definition import Definition
    from svcnode.probes.base import Probe

LOCAL_KINDS = frozenset({"disk", "exec", "file", "sqlite"})
FILE_OPTIONS = frozenset({"ca", "client_certificate", "client_key", "credentials_file"})
PATH: KeyPath = ("services", 0)


def define_registered(
    service_id: str, options: Mapping[str, Any], settings: Settings, environ: Mapping[str, str]
) -> Definition:
    """Raises `ConfigError`, whose `path` begins with `PATH`."""
    if "id" in options:
        raise ConfigError("id: the id is in the path; remove this key", key="id", path=(*PATH, "id"))
    source = Source.of_data({"services": [{"id": service_id, **options}]}, environ)
    validate_value(source.data["services"][0], RegisteredServiceTable, PATH, source)
    service = cast("RegisteredServiceTable", source.data["services"][0])
    with source.error_context(*PATH, "id"):
        validate_service_id(service_id)
    if ("probe" in service) == ("ttl" in service):
        both_or_neither = "both are" if "probe" in service else "neither is"
        raise source.error(PATH, f"a service needs exactly one of probe and ttl; {both_or_neither} set")
    probe = _probe(service, settings, source)
    table = {key: value for key, value in service.items() if key != "ttl"} | {"probe": ""}
    return service_from(cast("ServiceTable", table), PATH, settings.defaults, lambda _: probe, source).definition


def _probe(service: RegisteredServiceTable, settings: Settings, source: Source) -> Probe:
    if "ttl" in service:
        with source.error_context(*PATH, "ttl"):
            return make_probe({"url": f"heartbeat:{service['ttl']}"})
    with source.error_context(*PATH, "probe"):
        if settings.control is not None and settings.control.allows_exec:
            return make_probe(service["probe"], environ=source.environ, allowed={"allow_exec"})
        _refuse_local_access(service["probe"])
        return make_probe(service["probe"], environ={})


def _refuse_local_access(probe: str | dict[str, Any]) -> None:
    hint = "; to allow it, set allow_exec = true in [control]"
    scheme, options = scheme_of(probe), probe.keys() if isinstance(probe, dict) else ()
    if scheme in LOCAL_KINDS:
        access = "runs a program" if scheme == "exec" else "reads this machine"
        raise InvalidValueError(f"{scheme}: {access} with the permissions of the node{hint}")
    for option in sorted(FILE_OPTIONS.intersection(options)):
        raise OptionError(option, f"reads a file with the permissions of the node{hint}")
    text = json.dumps(probe)
    if "${" in text or '"file":' in text:
        raise InvalidValueError(f"${{…}} and {{ file = … }} read secrets of the node{hint}")
