"""A service that a program registers, through the control socket or in the registry of a shared node: the same keys
and errors as in the file.

A program that may register services is not necessarily allowed what the node is allowed. So a probe may not run
programs, read files or use secrets of the node, unless `allow_exec` is set in [control].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from svcnode.config.schema import KeyPath, RegisteredServiceTable
from svcnode.config.settings import check_observer_keys, service_from
from svcnode.config.sources import Source
from svcnode.config.validate import validate_value
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.model import MAX_TEXT_CHARS, validate_service_id
from svcnode.definition import ServiceOptions
from svcnode.probes import make_probe
from svcnode.probes.restricted import is_restricted, reject_local_access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.config.schema import ServiceTable
    from svcnode.config.settings import Settings
    from svcnode.definition import Definition
    from svcnode.probes.base import Probe

PATH: KeyPath = ("services", 0)
_RESTRICTED = (
    "it reads the machine that checks it, or may hold a secret, which everyone who reads the registry could see; put "
    "the service into the configuration file of a replica"
)


def define_registered(
    service_id: str, options: Mapping[str, Any], settings: Settings | None, environ: Mapping[str, str]
) -> Definition:
    """For the node with these settings; None: for the registry.

    Raises `ConfigError`, whose `path` begins with `PATH`.
    """
    if "id" in options:
        raise ConfigError("id: the id is in the path; remove this key", key="id", path=(*PATH, "id"))
    source = Source.of_data({"services": [{"id": service_id, **options}]}, environ)
    validate_value(source.data["services"][0], RegisteredServiceTable, PATH, source)
    service = cast("RegisteredServiceTable", source.data["services"][0])
    with source.error_context(*PATH, "id"):
        validate_service_id(service_id)
    _check_lengths(service, source)
    if ("probe" in service) == ("ttl" in service):
        both_or_neither = "both are" if "probe" in service else "neither is"
        raise source.error(PATH, f"a service needs exactly one of probe and ttl; {both_or_neither} set")
    check_observer_keys(service, PATH, source, is_shared=settings is None or settings.sharing is not None)
    probe = _probe(service, settings, source)
    table = {"probe": "", **{key: value for key, value in service.items() if key != "ttl"}}
    defaults = ServiceOptions() if settings is None else settings.defaults
    definition = service_from(cast("ServiceTable", table), PATH, defaults, lambda _: probe, source).definition
    if "ttl" in service:
        others = {key: value for key, value in (definition.options or {}).items() if key != "probe"}
        definition = definition._replace(options={**others, "ttl": service["ttl"]})
    return definition


def _check_lengths(service: RegisteredServiceTable, source: Source) -> None:
    for key, max_chars in MAX_TEXT_CHARS.items():
        text = str(service.get(key, ""))
        if len(text) > max_chars:
            raise source.error((*PATH, key), f"must have at most {max_chars} characters, not {len(text)}")


def _probe(service: RegisteredServiceTable, settings: Settings | None, source: Source) -> Probe:
    if "ttl" in service:
        with source.error_context(*PATH, "ttl"):
            return make_probe({"url": f"heartbeat:{service['ttl']}"})
    with source.error_context(*PATH, "probe"):
        if settings is None:
            if is_restricted(service["probe"]):
                raise InvalidValueError(_RESTRICTED)
            return make_probe(service["probe"], environ={})
        if settings.control is not None and settings.control.allows_exec:
            return make_probe(service["probe"], environ=source.environ, allowed={"allow_exec"})
        reject_local_access(service["probe"], hint="; to allow it, set allow_exec = true in [control]")
        return make_probe(service["probe"], environ={})
