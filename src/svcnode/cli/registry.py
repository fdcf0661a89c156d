"""`svcnode registry check | show | forget | accept`: the registry of a node on several machines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.cli._args import CommandParser, add_config_option, add_registry_option, utf8_text
from svcnode.cli._registry_args import open_registry, valid_name
from svcnode.cli.output import show
from svcnode.config import find_node_file, load
from svcnode.core.errors import InvalidValueError, RegistryError
from svcnode.core.text import join_first, sanitize
from svcnode.sharing.check import FindingLevel, check_configuration, check_registry
from svcnode.sharing.client import accept_losses, forget_replica, read_nodes
from svcnode.sharing.format import KeyKind, is_lost, node_root, original_owner, parse_key, replica_of
from svcnode.sharing.rules import observers
from svcnode.sharing.work import work_fields

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from svcnode.config.sharing import RegistrySettings
    from svcnode.sharing.check import RegistryFinding
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.format import RegistryKey
    from svcnode.sharing.view import RegistryView, SharedService

GAP = "  "


class _Action(NamedTuple):
    help: str
    description: str
    epilog: str
    run: Callable[[EtcdClient, RegistrySettings, argparse.Namespace], Awaitable[int]]


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Look after the registry of a node on several machines: check it, show what is in it, remove a replica that is "
        "gone for good, or accept that services which the registry has lost are gone."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, action in _ACTIONS.items():
        child = commands.add_parser(
            name, help=action.help, description=action.description, epilog=action.epilog, allow_abbrev=False
        )
        add_config_option(child)
        add = child.add_argument
        add_registry_option(child, "this registry instead of the one in the configuration")
        default = "all nodes" if name == "show" else "the one in the configuration"
        add("--node", type=utf8_text, metavar="NAME", help=f"which node (default: {default})")
        if name == "show":
            add("--json", action="store_true", help="print one JSON object")
        if name == "forget":
            add("replica", type=utf8_text, metavar="REPLICA", help="name of a replica that is gone for good")
        if name == "accept":
            text = "id of a lost service, or name of a lost issue (default: everything that is lost)"
            add("names", nargs="*", type=utf8_text, metavar="ID", help=text)
        child.set_defaults(action=action.run, parser=child)


def run_command(arguments: argparse.Namespace) -> int:
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    async with open_registry(arguments) as (etcd, settings):
        node = settings.node_name if arguments.node is None else valid_name("--node", arguments.node)
        return int(await arguments.action(etcd, settings._replace(node_name=node), arguments))


def _table(rows: Sequence[Sequence[str]], indent: str = "") -> Iterator[str]:
    """Aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield indent + GAP.join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


# ---- check


async def _check(etcd: EtcdClient, settings: RegistrySettings, arguments: argparse.Namespace) -> int:
    node = settings.node_name
    findings = await check_registry(etcd, settings.registry, node)
    if arguments.registry is None and not _has_failed(findings):
        configuration = load(find_node_file(arguments.config), os.environ)
        assert configuration.sharing is not None, "the registry is from this configuration"
        definitions = [service.definition for service in configuration.services]
        content = await read_nodes(etcd, settings.registry.prefix, configuration.node_name)
        view = content.nodes[configuration.node_name]
        findings += check_configuration(configuration.sharing, configuration.node_name, definitions, view)
    show(f"registry {settings.registry}", sys.stdout)
    rows = [(finding.level.value, finding.subject, sanitize(finding.text)) for finding in findings]
    show("\n".join(_table(rows, GAP)), sys.stdout)
    return int(_has_failed(findings))


def _has_failed(findings: Sequence[RegistryFinding]) -> bool:
    return any(finding.level is FindingLevel.FAILED for finding in findings)


# ---- show


async def _show(etcd: EtcdClient, settings: RegistrySettings, arguments: argparse.Namespace) -> int:
    """All nodes, or the one that is named with --node."""
    content = await read_nodes(etcd, settings.registry.prefix, arguments.node)
    nodes = [_node_fields(name, view) for name, view in sorted(content.nodes.items())]
    if arguments.json:
        fields = {"registry": str(settings.registry), "nodes": nodes, "foreign_keys": content.foreign_keys}
        show(json.dumps(fields), sys.stdout)
        return 0
    lines = [line for node in nodes for line in _node_lines(node)]
    lines += (f"ignored {sanitize(key)}: it does not belong to a node" for key in content.foreign_keys)
    show("\n".join(lines) if lines else f"there is no node in {settings.registry}", sys.stdout)
    return 0


def _node_fields(name: str, view: RegistryView) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": [
            {"name": replica, "url": document.url, "software": document.software}
            for replica, document in sorted(view.replicas.items())
        ],
        "services": [_service_fields(service, view) for service in view.services()],
        "issues": [issue._asdict() for issue in view.issues()],
        "work": work_fields(view.work(), time.time()),
        "ignored": [{"key": key, **ignored._asdict()} for key, ignored in sorted(view.ignored.items())],
    }


def _service_fields(service: SharedService, view: RegistryView) -> dict[str, Any]:
    definition = service.definition
    source = "probe" if definition.is_checked else "reports" if definition.fixed_status is None else "fixed status"
    gone = sorted(service.owner_replicas - view.replicas.keys())
    return {
        "id": service.id,
        "name": definition.service.name,
        "status_from": source,
        "restricted": definition.restricted,
        "owners": list(service.owners),
        "lost": service.is_lost,
        "gone_replicas": gone,
        "differing_owners": [owner for owner in service.owners if _differs(service, view, owner)],
        "observers": list(observers(service, view.replicas)) if definition.is_checked else [],
    }


def _differs(service: SharedService, view: RegistryView, owner: str) -> bool:
    """Whether this owner's definition differs from the one that applies, which is the one that was written last."""
    definition = view.definition(service.id, owner)
    return definition is not None and definition.options != service.definition.options


def _node_lines(node: dict[str, Any]) -> Iterator[str]:
    yield f"{sanitize(node['name'])}: replicas: {len(node['replicas'])}, services: {len(node['services'])}"
    replicas = [(one["name"], one["url"] or "-", one["software"]) for one in node["replicas"]]
    if replicas:
        yield from _table([("REPLICA", "URL", "SOFTWARE"), *(tuple(map(sanitize, row)) for row in replicas)], GAP)
    services = [tuple(map(sanitize, _service_row(service))) for service in node["services"]]
    if services:
        yield from _table([("SERVICE", "OWNERS", "STATUS FROM"), *services], GAP)
    for issue in node["issues"]:
        reason = f": {issue['reason']}" if issue["reason"] else ""
        yield sanitize(f"{GAP}issue {issue['name']} of {_owner_text(issue['owner'], [])}{reason}")
    for work in node["work"]:
        scope = "all replicas" if work["replica"] is None else work["replica"]
        yield sanitize(f"{GAP}{scope}: {work['text']}")
    for ignored in node["ignored"]:
        yield sanitize(f"{GAP}ignored {ignored['key']}: {ignored['reason']}")


def _service_row(service: dict[str, Any]) -> tuple[str, str, str]:
    owners = []
    for owner in service["owners"]:
        is_gone, differs = replica_of(owner) in service["gone_replicas"], owner in service["differing_owners"]
        owners.append(_owner_text(owner, ["gone"] * is_gone + ["differs"] * differs))
    source = service["status_from"]
    if source == "probe":
        source = f"checks by {', '.join(service['observers'])}" if service["observers"] else "no replica can check it"
    return service["id"], ", ".join(owners), f"{source} (restricted)" if service["restricted"] else source


def _owner_text(owner: str, marks: list[str]) -> str:
    """The owner; for what the registry has lost, the original one."""
    found = ", ".join(["lost"] * is_lost(owner) + marks)
    return f"{original_owner(owner)} ({found})" if found else owner


# ---- forget and accept


def _node_of(settings: RegistrySettings) -> str:
    if settings.node_name is None:
        raise InvalidValueError("which node? Name it with --node, or with name in [node] of the configuration")
    return settings.node_name


async def _forget(etcd: EtcdClient, settings: RegistrySettings, arguments: argparse.Namespace) -> int:
    node = _node_of(settings)
    root = node_root(settings.registry.prefix, node)
    keys = await forget_replica(etcd, root, arguments.replica)
    if not keys:
        raise RegistryError(f"the registry has nothing of a replica {arguments.replica} of {node}")
    parsed = [key for key in (parse_key(root, key) for key in keys) if key is not None]
    names = "".join(f"; {text}" for text in _named(parsed, 10))
    show(sanitize(f"forgot the replica {arguments.replica} of {node}{names}"), sys.stdout)
    return 0


async def _accept(etcd: EtcdClient, settings: RegistrySettings, arguments: argparse.Namespace) -> int:
    """Lists everything that is given up, so that nothing is lost unnoticed."""
    node = _node_of(settings)
    keys = await accept_losses(etcd, node_root(settings.registry.prefix, node), arguments.names)
    if not keys:
        raise RegistryError(f"the registry has lost nothing of {node}")
    show(sanitize(f"accepted that {node} has lost {'; '.join(_named(keys, len(keys)))}"), sys.stdout)
    return 0


def _named(keys: Sequence[RegistryKey], count: int) -> Iterator[str]:
    """The services and issues that the keys name, up to a maximum of each."""
    for kind in (KeyKind.SERVICES, KeyKind.ISSUES):
        names = [*dict.fromkeys(key.names[0] for key in keys if key.kind is kind)]
        if names:
            yield f"{kind}: {join_first(names, count)}"


_EPILOG = """\
exit codes:
  0  {good}
  1  {bad}
  2  invalid arguments or configuration

examples:
  svcnode registry {example}
"""
_REFUSED = "the registry refuses it, or is unreachable"
_ACTIONS = {
    "check": _Action(
        "check whether the registry can be used",
        "Can the registry be used? Check its endpoints, the login, the permissions, the keys and its size, and show "
        "what this configuration would write. Nothing is written.",
        _EPILOG.format(good="the registry can be used", bad="it cannot", example="check"),
        _check,
    ),
    "show": _Action(
        "show nodes, replicas and services",
        "Show the nodes in the registry with their replicas, services, issues, drains and maintenance, and the keys "
        "that are ignored.",
        _EPILOG.format(good="shown", bad=_REFUSED, example="show --registry etcd://10.0.0.1:2379"),
        _show,
    ),
    "forget": _Action(
        "remove what is left of a replica that is gone for good",
        "Remove the services and issues of a replica that is gone for good. Services that other replicas have as well "
        "stay. While the replica is live, this is refused.",
        _EPILOG.format(good="done", bad=_REFUSED, example="forget machine-3"),
        _forget,
    ),
    "accept": _Action(
        "accept that what the registry has lost is gone",
        "Accept that services and issues are gone which the registry has lost, for example in a restore from an old "
        "snapshot. Until you do, the replicas keep them in the list, and the node is at most partially healthy.",
        _EPILOG.format(good="done", bad=f"nothing is lost, or {_REFUSED}", example="accept db-1"),
        _accept,
    ),
}
