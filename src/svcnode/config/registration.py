"""A service that a program registers, through the control socket or in the registry of a shared node: the same keys
and errors as in the file.

A program that may register services is not necessarily allowed what the node is allowed. So a probe may not run
programs, read files or use secrets of the node, unless `allow_exec` is set in [control].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.config.reading import read_table
from svcnode.config.service_tables import Defaults, check_observer_keys, is_path_of_pushes, service_from
from svcnode.config.sources import Source
from svcnode.config.tables import DefaultsTable, RegisteredServiceTable, ServiceTable
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.model import MAX_TEXT_CHARS
from svcnode.node.definition import RegisteredService
from svcnode.probes import make_probe
from svcnode.probes.restricted import is_restricted, reject_local_access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.config.keys import KeyPath
    from svcnode.config.settings import Settings
    from svcnode.node.definition import Definition
    from svcnode.probes.base import Probe

PATH: KeyPath = ("services", 0)
_NOT_IN_FILE = ("ttl", "deregister_after")
_RESTRICTED = (
    "it reads the machine that checks it, or may hold a secret, which everyone who reads the registry could see; put "
    "the service into the configuration file of a replica"
)


def define_registered(
    service_id: str, options: Mapping[str, Any], settings: Settings | None, environ: Mapping[str, str]
) -> RegisteredService:
    """The definition for the node with these settings or, with None, for the registry.

    Raises `ConfigError`, whose `path` begins with `PATH`.
    """
    if "id" in options:
        raise ConfigError("id: the id is in the path; remove this key", key="id", path=(*PATH, "id"))
    source = Source.of_data({"services": [{"id": service_id, **options}]}, environ)
    service = read_table(RegisteredServiceTable, source.data["services"][0], PATH, source)
    _check_lengths(service, source)
    if service.is_right("probe", "ttl") and ("probe" in service) == ("ttl" in service):
        both_or_neither = "both are" if "probe" in service else "neither is"
        source.report(PATH, f"a service needs exactly one of probe and ttl; {both_or_neither} set")
    if service.push_token is not None:
        _check_push(options["push_token"], settings, source)
    check_observer_keys(service, PATH, source, is_shared=settings is None or settings.sharing is not None)
    source.raise_errors()
    probe = _probe(service, settings, source)
    as_in_file = {"probe": "", **{key: value for key, value in service.given.items() if key not in _NOT_IN_FILE}}
    table = read_table(ServiceTable, as_in_file, PATH, source)
    defaults = Defaults(DefaultsTable({} if settings is None else settings.defaults))
    defined = service_from(table, PATH, defaults, lambda _: probe, source)
    source.raise_errors()
    assert defined is not None, "or an error was raised"
    definition = defined.definition
    if service.deregister_after is not None:
        _check_removal(service.deregister_after, definition, settings, source)
    if "ttl" in service:
        others = {key: value for key, value in (definition.options or {}).items() if key != "probe"}
        definition = definition._replace(options={**others, "ttl": service.ttl})
    return RegisteredService(definition, defined.push, service.deregister_after)


def _check_push(token: object, settings: Settings | None, source: Source) -> None:
    """Refuses variables and files: they are the node's, and the program may not be allowed to read them."""
    if settings is None:
        source.report(
            (*PATH, "push_token"),
            "would not stay secret, because everyone who reads the registry could see it; remove this key",
        )
    elif not isinstance(token, str) or "$" in token:
        source.report((*PATH, "push_token"), "must be the token itself, not a variable or a file of the node")
    elif any(map(is_path_of_pushes, settings.prefixes)):
        source.report(
            (*PATH, "push_token"),
            "clashes with the prefix of the interface, which is the path of pushes; choose another prefix",
        )


def _check_removal(after_s: float, definition: Definition, settings: Settings | None, source: Source) -> None:
    path, ttl_s = (*PATH, "deregister_after"), definition.service.policy.ttl_s
    if settings is None:
        source.report(path, "only works for services that are registered through a control socket; remove this key")
    elif ttl_s is None:
        source.report(path, "only works for a service with a ttl; remove this key")
    elif after_s < ttl_s:
        source.report(path, "must not be shorter than the ttl, after which the service is Down")
    source.raise_errors()


def _check_lengths(service: RegisteredServiceTable, source: Source) -> None:
    for key, max_chars in MAX_TEXT_CHARS.items():
        text = getattr(service, key) or ""
        if len(text) > max_chars:
            source.report((*PATH, key), f"must have at most {max_chars} characters, not {len(text)}")


def _probe(service: RegisteredServiceTable, settings: Settings | None, source: Source) -> Probe:
    if "ttl" in service:
        with source.error_context(*PATH, "ttl"):
            return make_probe({"url": f"heartbeat:{service.ttl}"})
    written = service.given["probe"]
    with source.error_context(*PATH, "probe"):
        if settings is None:
            if is_restricted(written):
                raise InvalidValueError(_RESTRICTED)
            return make_probe(written, environ={})
        if settings.control is not None and settings.control.allows_exec:
            return make_probe(written, environ=source.environ, allowed={"allow_exec"})
        reject_local_access(written, hint="; to allow it, set allow_exec = true in [control]")
        return make_probe(written, environ={})
