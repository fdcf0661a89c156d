"""`svcnode register`, `deregister`, `beat`, `issue`, `drain`, `maintain`, `ack`, `note`, `reload`: change a node.

The first three, `drain` and `maintain` also work through the registry of a node on several machines.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from svcnode.cli._args import (
    add_control_options,
    control_client,
    positive_duration_s,
    read_secret,
    reason_text,
    service_client,
    utf8_text,
)
from svcnode.cli.output import show
from svcnode.control.client import STATUSES, ControlClient
from svcnode.core.errors import ControlError, InvalidValueError, SvcnodeError
from svcnode.core.maintenance import parse_shown_time_s, parse_time_s
from svcnode.core.units import iso_time, parse_duration_s, utc_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from svcnode.cli._args import CommandParser
    from svcnode.cli._registry_args import BlockingRegistryClient
    from svcnode.control.types import MaintenanceDocument

    ServiceClient = ControlClient | BlockingRegistryClient

_STATUS_HELP = f"{', '.join(STATUSES[:-1])} or {STATUSES[-1]} (default: up)"
_EPILOG = """\
exit codes:
  0  done
  1  {receiver} refuses it, or is unreachable{nothing}
  2  invalid arguments or configuration

examples:
{examples}
"""
_EXAMPLES = {
    "register": ("db-1 --probe postgresql://monitor@127.0.0.1/ledger", "worker --ttl 15s --impact critical"),
    "deregister": ('worker --reason "moved to another machine"',),
    "beat": ("worker", 'worker down "the queue is full"'),
    "issue": ('disk "the disk of the signer fails"', "disk --clear"),
    "drain": ('--reason "kernel update"', "--undo"),
    "maintain": ('db-1 --for 2h --reason "upgrade"', "db-1 --end", '--from "2026-12-01 22:00" --for 2h'),
    "ack": ('db-1 --reason "a new disk is on its way"', "db-1 --clear"),
    "note": ('"deployed v1.4.3"',),
    "reload": ("",),
}
NOT_FOUND = 404
_TIMES = '"2026-12-01 22:00" in UTC, "2026-12-01T22:00:00+01:00" with another zone, or "+2h" from now'
_WITH_OWNER = ("register", "deregister", "beat")
_WITH_REGISTRY = (*_WITH_OWNER, "drain", "maintain")
_RELOAD_TIMEOUT = "35s"  # the node ends its own wait after 30 s; thousands of services take some seconds
_REMOVING = ("deregister", "issue", "drain", "maintain", "ack")


def configure(parser: CommandParser) -> None:
    name = parser.prog.rpartition(" ")[2]
    with_registry = name in _WITH_REGISTRY
    add_control_options(parser, with_registry=with_registry, with_owner=name in _WITH_OWNER)
    _COMMANDS[name](parser)
    receiver = "the node or the registry" if with_registry else "the node"
    nothing = ";\n     or there is nothing to remove or to end" if name in _REMOVING else ""
    examples = "\n".join(f"  svcnode {name} {arguments}".rstrip() for arguments in _EXAMPLES[name])
    parser.epilog = _EPILOG.format(receiver=receiver, nothing=nothing, examples=examples)


def run_command(arguments: argparse.Namespace) -> int:
    client = service_client(arguments) if "registry" in arguments else control_client(arguments)
    with client:
        text = arguments.action(client, arguments)
    show(text, sys.stdout)
    return 0


# ---- each command: its options, and what it does


def _configure_register(parser: CommandParser) -> None:
    parser.description = (
        "Add a service to the running node, or replace it. "
        "With --probe, the node checks the service. With --ttl, the service sends heartbeats (svcnode beat)."
    )
    parser.add_argument("id", type=utf8_text, metavar="ID", help="id of the service")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--probe",
        type=utf8_text,
        metavar="URL",
        help="how the node checks it, such as postgresql://monitor@127.0.0.1/ledger",
    )
    source.add_argument(
        "--ttl", metavar="DURATION", help='it is Down when it sends no heartbeat for this long, such as "15s"'
    )
    parser.add_argument("--name", type=utf8_text, help="its name for people (default: the id)")
    parser.add_argument("--description", type=utf8_text, help="what it is; everybody can read it, like the name")
    parser.add_argument(
        "--impact", choices=("critical", "partial", "none"), help="how much it matters for the node (default: partial)"
    )
    parser.add_argument(
        "--depends-on",
        type=utf8_text,
        action="append",
        metavar="ID",
        help="a service or group that it needs; alerts name that one as the cause; may be repeated",
    )
    parser.add_argument(
        "--set",
        type=utf8_text,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of [[services]], such as interval=5s or push_token=@FILE; may be repeated",
    )
    parser.set_defaults(action=_register)


def _register(client: ServiceClient, arguments: argparse.Namespace) -> str:
    named = {key: getattr(arguments, key) for key in ("probe", "ttl", "name", "description", "impact", "depends_on")}
    options = {key: value for key, value in named.items() if value is not None}
    service = client.register(arguments.id, **options, **dict(map(_key_value, arguments.set)))
    status = f": {service['status']}" if "status" in service else " in the registry"
    return f"registered {service['id']}{status} (revision {service['revision']})"


def _key_value(text: str) -> tuple[str, Any]:
    """A value that is JSON is taken as such: 2 is a number, "2" and 5s are texts."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidValueError(f'--set: must be KEY=VALUE, such as interval=5s, not "{text}"')
    if key == "push_token":
        return key, read_secret("--set push_token", value)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _configure_deregister(parser: CommandParser) -> None:
    parser.description = (
        "Remove a service that was registered with svcnode register or by a program, or in the registry by this owner. "
        "Services of the configuration file cannot be removed this way."
    )
    parser.add_argument("id", type=utf8_text, metavar="ID", help="id of the service")
    parser.add_argument("--reason", type=reason_text, default="", metavar="TEXT", help="why, for people")
    parser.set_defaults(action=_deregister)


def _deregister(client: ServiceClient, arguments: argparse.Namespace) -> str:
    if isinstance(client, ControlClient):
        client.service(arguments.id)  # as for `_exists`
        client.deregister(arguments.id, reason=arguments.reason)
    else:
        client.deregister(arguments.id)
    return f"deregistered {arguments.id}"


def _configure_beat(parser: CommandParser) -> None:
    parser.description = (
        "Report the status of a service that sends heartbeats. The report is valid for its ttl: send the next one "
        "before that is over."
    )
    parser.add_argument("id", type=utf8_text, metavar="ID", help="id of the service")
    parser.add_argument("status", nargs="?", default="up", choices=STATUSES, metavar="STATUS", help=_STATUS_HELP)
    _add_reason(parser)
    parser.add_argument("--code", help="a reason code for programs; begin codes of your own with x_")
    parser.set_defaults(action=_beat)


def _beat(client: ServiceClient, arguments: argparse.Namespace) -> str:
    client.beat(arguments.id, arguments.status, _reason(arguments), code=arguments.code)
    return f"{arguments.id}: {arguments.status}"


def _add_reason(parser: CommandParser) -> None:
    parser.add_argument("reason", type=reason_text, nargs="?", default="", metavar="REASON", help="why, for people")
    parser.add_argument("--reason", type=reason_text, dest="reason_option", metavar="TEXT", help="the same as REASON")


def _reason(arguments: argparse.Namespace) -> str:
    reason: str = arguments.reason_option or arguments.reason
    return reason


def _configure_issue(parser: CommandParser) -> None:
    parser.description = (
        "Say that something is wrong with the node which no probe notices, or that it is over. While the node has an "
        "issue, its health is 503."
    )
    parser.add_argument(
        "name", type=utf8_text, metavar="NAME", help="short name of the issue, by which you clear it later"
    )
    _add_reason(parser)
    parser.add_argument("--clear", action="store_true", help="the issue is over")
    parser.set_defaults(action=_issue)


def _issue(client: ControlClient, arguments: argparse.Namespace) -> str:
    reason = _reason(arguments)
    if arguments.clear:
        if not _exists(lambda: client.issue(arguments.name)):
            raise SvcnodeError(f"the node has no issue {arguments.name} that a command has set")
        client.clear_issue(arguments.name, reason)
        return f"cleared {arguments.name}"
    client.set_issue(arguments.name, reason)
    return f"set {arguments.name}: node health is 503"


def _add_all_replicas(parser: CommandParser) -> None:
    parser.add_argument(
        "--all-replicas",
        action="store_true",
        help="do it for all replicas of a node on several machines, not only for this one; --registry implies it",
    )


def _is_for_all(arguments: argparse.Namespace) -> bool:
    return bool(arguments.all_replicas or arguments.registry is not None)


def _configure_drain(parser: CommandParser) -> None:
    parser.description = (
        "Take the node out of rotation, for example before an update: its health is 503, so load balancers send it no "
        "requests, until you undo it."
    )
    parser.add_argument("--undo", action="store_true", help="put the node back into rotation")
    _add_all_replicas(parser)
    parser.add_argument("--reason", type=reason_text, default="", metavar="TEXT", help="why, for people")
    parser.set_defaults(action=_drain)


def _drain(client: ServiceClient, arguments: argparse.Namespace) -> str:
    for_all = _is_for_all(arguments)
    if not arguments.undo:
        client.drain(arguments.reason, all_replicas=for_all)
        return f"draining{' all replicas' if for_all else ''}: node health is 503"
    if not _exists(lambda: client.drained(all_replicas=for_all)):
        raise SvcnodeError(_not_draining(client, for_all=for_all))
    client.undrain(arguments.reason, all_replicas=for_all)
    if for_all or not isinstance(client, ControlClient):
        return "no longer draining all replicas; a replica that was drained by itself still drains"
    node = client.node()
    return (
        f"{'all replicas are still draining' if node['draining'] else 'not draining'}; node health is {node['health']}"
    )


def _not_draining(client: ServiceClient, *, for_all: bool) -> str:
    if for_all:
        return "the node as a whole is not draining; a single replica may be"
    is_drained = isinstance(client, ControlClient) and client.node()["draining"]
    return "all replicas are draining; to end that, add --all-replicas" if is_drained else "the node is not draining"


def _configure_maintain(parser: CommandParser) -> None:
    parser.description = (
        "Work on a service, or on the node, without alerts: checks go on, but alerts are held until maintenance ends. "
        "Problems that remain are reported then. "
        f"A TIME is {_TIMES}."
    )
    parser.add_argument("id", type=utf8_text, nargs="?", metavar="ID", help="id of the service (default: the node)")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--for", dest="duration", metavar="DURATION", help='how long, such as "2h"')
    action.add_argument("--until", metavar="TIME", help="when it ends, instead of how long it lasts")
    action.add_argument(
        "--end", action="store_true", help="end it now; maintenance that is planned for later stays planned"
    )
    action.add_argument(
        "--cancel", action="store_true", help="cancel the planned maintenance, or end it if it has begun"
    )
    parser.add_argument("--from", dest="begin", metavar="TIME", help="when it begins, to plan it ahead (default: now)")
    _add_all_replicas(parser)
    parser.add_argument("--reason", type=utf8_text, default="", metavar="TEXT", help="why, for people")
    parser.set_defaults(action=_maintain)


def _maintain(client: ServiceClient, arguments: argparse.Namespace) -> str:
    if arguments.begin is not None and (arguments.end or arguments.cancel):
        raise InvalidValueError("--from: only works with --until or --for")
    if arguments.cancel:
        return _cancel(client, arguments)
    if arguments.begin is not None or arguments.until is not None:
        return _plan(client, arguments)
    if arguments.end:
        return _end(client, arguments)
    for_all = _is_for_all(arguments)
    positive_duration_s("--for", arguments.duration)
    made = client.maintain(arguments.id, arguments.duration, reason=arguments.reason, all_replicas=for_all)
    text = f"{_subject(arguments)} is in maintenance until {utc_text(made['until'])}"
    other = None if for_all else _last_maintenance(client, arguments.id)
    return text if other is None or other["until"] <= made["until"] else f"{text}, and {_source(other)}"


def _subject(arguments: argparse.Namespace) -> str:
    return f"{arguments.id or 'the node'}{' on all replicas' if _is_for_all(arguments) else ''}"


def _end(client: ServiceClient, arguments: argparse.Namespace) -> str:
    for_all, subject = _is_for_all(arguments), _subject(arguments)
    is_set = _exists(lambda: client.maintenance(arguments.id, all_replicas=for_all))
    client.end_maintenance(arguments.id, reason=arguments.reason, all_replicas=for_all)
    planned_from = _planned_from(client, arguments)
    if planned_from and parse_time_s(planned_from) <= time.time():
        client.cancel_maintenance(arguments.id, reason=arguments.reason, all_replicas=for_all)
        is_set = True
    left = None if for_all else _last_maintenance(client, arguments.id)
    text = f"{subject} is not in maintenance" if left is None else f"{subject} is still in maintenance {_source(left)}"
    if not is_set:
        raise SvcnodeError(f"there is no maintenance to end that was started by a command; {text}")
    return text


def _plan(client: ServiceClient, arguments: argparse.Namespace) -> str:
    begin_s = time.time() if arguments.begin is None else _time_s("--from", arguments.begin)
    if arguments.until is None:
        end_s = begin_s + positive_duration_s("--for", arguments.duration)
    else:
        end_s = _time_s("--until", arguments.until)
    begin, end = _iso_time("--from", begin_s), _iso_time("--until", end_s)
    for_all = _is_for_all(arguments)
    planned = client.plan_maintenance(arguments.id, begin, end, reason=arguments.reason, all_replicas=for_all)
    is_later = begin_s > time.time()
    when = f"will be in maintenance from {utc_text(planned['from'])}" if is_later else "is in maintenance"
    return f"{_subject(arguments)} {when} until {utc_text(planned['until'])}"


def _time_s(flag: str, text: str) -> float:
    try:
        if text.startswith("+"):
            return time.time() + parse_duration_s(text[1:])
        return parse_shown_time_s(text)
    except InvalidValueError:
        raise InvalidValueError(f'{flag}: must be {_TIMES}, not "{text}"') from None


def _iso_time(flag: str, at_s: float) -> str:
    try:
        return iso_time(at_s)
    except (ValueError, OverflowError, OSError):
        raise InvalidValueError(f"{flag}: the time is too far in the future") from None


def _cancel(client: ServiceClient, arguments: argparse.Namespace) -> str:
    if _planned_from(client, arguments) is None:
        raise SvcnodeError(f"there is no maintenance of {_subject(arguments)} to cancel that was planned by a command")
    client.cancel_maintenance(arguments.id, reason=arguments.reason, all_replicas=_is_for_all(arguments))
    return f"cancelled the planned maintenance of {_subject(arguments)}"


def _planned_from(client: ServiceClient, arguments: argparse.Namespace) -> str | None:
    """When the planned maintenance begins or began; None if there is none."""
    try:
        return client.planned_maintenance(arguments.id, all_replicas=_is_for_all(arguments))["from"]
    except ControlError as exc:
        if exc.status != NOT_FOUND:
            raise
        return None


def _exists(read: Callable[[], object]) -> bool:
    """Whether there is something to remove. DELETE succeeds also without it, so that it can be repeated."""
    try:
        read()
    except ControlError as exc:
        if exc.status != NOT_FOUND:
            raise
        return False
    return True


def _last_maintenance(client: ServiceClient, service_id: str | None) -> MaintenanceDocument | None:
    """The maintenance that ends last, whether of the service or of the node."""
    assert isinstance(client, ControlClient), "the registry is asked for all replicas only"
    return client.node()["maintenance"] if service_id is None else client.service(service_id)["maintenance"]


def _source(maintenance: MaintenanceDocument) -> str:
    texts = {"schedule": "by the schedule", "planned": "as planned", "all_replicas": "on all replicas"}
    of = texts.get(maintenance["source"], "with the node")
    return f"{of}, until {utc_text(maintenance['until'])}"


def _configure_ack(parser: CommandParser) -> None:
    parser.description = (
        "Say that you are taking care of a problem of a service, or of the node. There are no reminders and no "
        "escalation until the problem has cleared. If it gets worse, messages are sent as usual. "
        f"A TIME is {_TIMES}."
    )
    parser.add_argument("id", type=utf8_text, nargs="?", metavar="ID", help="id of the service (default: the node)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--until", metavar="TIME", help="when reminders start again (default: with the next problem)")
    action.add_argument(
        "--clear", action="store_true", help="nobody is taking care of it any more: reminders start again"
    )
    parser.add_argument("--reason", type=reason_text, default="", metavar="TEXT", help="what you are doing, for people")
    parser.set_defaults(action=_ack)


def _ack(client: ControlClient, arguments: argparse.Namespace) -> str:
    subject = arguments.id or "the node"
    if arguments.clear:
        if not _exists(lambda: client.acknowledgement(arguments.id)):
            raise SvcnodeError(f"{subject} is not acknowledged")
        client.clear_ack(arguments.id, reason=arguments.reason)
        return f"{subject} is no longer acknowledged"
    until = None if arguments.until is None else _iso_time("--until", _time_s("--until", arguments.until))
    made = client.ack(arguments.id, until=until, reason=arguments.reason)
    end = made.get("until")
    return f"acknowledged {subject} until {utc_text(end) if end else 'the problem has cleared'}"


def _configure_note(parser: CommandParser) -> None:
    parser.description = (
        'Write down what has happened, such as "deployed v1.4.3". It is in the timeline of the node, beside the '
        "outages (svcnode history), and changes nothing."
    )
    parser.add_argument("text", type=reason_text, metavar="TEXT", help="what has happened, for people")
    parser.add_argument("--service", type=utf8_text, metavar="ID", help="the service that it is about")
    parser.set_defaults(action=_note)


def _note(client: ControlClient, arguments: argparse.Namespace) -> str:
    return f"noted at {utc_text(client.note(arguments.text, service_id=arguments.service)['at'])}"


def _configure_reload(parser: CommandParser) -> None:
    parser.description = "Make the running node read its configuration again, and show what has changed."
    parser.set_defaults(action=_reload, timeout=_RELOAD_TIMEOUT)


def _reload(client: ControlClient, arguments: argparse.Namespace) -> str:
    return f"reloaded: {client.reload()}"


_COMMANDS: dict[str, Callable[[CommandParser], None]] = {
    "register": _configure_register,
    "deregister": _configure_deregister,
    "beat": _configure_beat,
    "issue": _configure_issue,
    "drain": _configure_drain,
    "maintain": _configure_maintain,
    "ack": _configure_ack,
    "note": _configure_note,
    "reload": _configure_reload,
}
