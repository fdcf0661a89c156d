"""Shared by the commands: the parser, durations, and the options that select and override the configuration.

`svcnode.config` is imported late: `serve` imports this module before it sets its first signal handler.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from svcnode.core.errors import InvalidValueError
from svcnode.core.text import closest_match, os_error_text
from svcnode.core.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.cli._registry_args import BlockingRegistryClient
    from svcnode.config import Override, Settings
    from svcnode.control.client import ControlClient

# 0 is good. Commands that grade a health or an outcome say the rest with 1, 3 and 4; for all others, 1 is failed.
EXIT_FAILED = EXIT_PARTIAL = 1
EXIT_USAGE = 2  # of every command: invalid arguments or configuration
EXIT_BAD = 3
EXIT_UNKNOWN = 4
DEFAULT_WIDTH = 80


class HelpFormatter(argparse.HelpFormatter):
    """Reads the width of the terminal itself: argparse loads shutil for it, with four modules for compression."""

    def __init__(self, prog: str, **options: Any) -> None:  # noqa: ANN401
        super().__init__(prog, **{"width": _terminal_width() - 2, **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """A text with line breaks, such as a list of examples, is shown as it is."""
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _terminal_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size().columns or DEFAULT_WIDTH
    except OSError:  # not a terminal
        return DEFAULT_WIDTH


# What other programs call a command.
_OTHER_WORDS = dict.fromkeys(("silence", "mute", "snooze", "downtime"), "maintain")
# Options that a command had once, and what is used now.
_RETIRED = {
    "--url": "the URL of the node is the first argument now, and --service ID names a service",
    "--tls": "set SVCNODE_SHARING_TLS=true in the environment",
    "--ca": "for the registry, set SVCNODE_SHARING_CA in the environment",
    "--client-certificate": "set SVCNODE_SHARING_CLIENT_CERTIFICATE in the environment",
    "--client-key": "set SVCNODE_SHARING_CLIENT_KEY in the environment",
}


class CommandParser(argparse.ArgumentParser):
    failure_exit_code = EXIT_FAILED  # for an error that is not one of the arguments or the configuration

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **{"formatter_class": HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")

    def reject_unknown(self, arguments: Sequence[str]) -> NoReturn:
        """Ends with an error about arguments that the command does not have."""
        option = next((text.partition("=")[0] for text in arguments if text.startswith("-")), "")
        hint = _RETIRED.get(option) if option else None
        if option and hint is None and (near := closest_match(option, self._option_string_actions)):
            hint = f"did you mean {near}?"
        self.error(f"unrecognized arguments: {' '.join(arguments)}{f'; {hint}' if hint else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        """For an unknown command, suggests the most similar one. argparse would list them all."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = [*action.choices, *(name for name in self._option_string_actions if name.startswith("--"))]
            near = f"--{value}" if f"--{value}" in known else _OTHER_WORDS.get(value) or closest_match(value, known)
            hint = f"did you mean {near}?" if near else f"see {self.prog} --help"
            self.error(f'unknown command "{value}"; {hint}')
        super()._check_value(action, value)


def program() -> str:
    """What to write to start this svcnode: its path, unless the shell finds this one by its name."""
    script = Path(sys.executable).parent / "svcnode"
    found = (Path(folder) / "svcnode" for folder in os.get_exec_path() if folder)
    in_path = next((one for one in found if os.access(one, os.X_OK)), None)
    if not script.is_file() or (in_path is not None and script.samefile(in_path)):
        return "svcnode"
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


def positive_duration_s(flag: str, text: str) -> float:
    # A zero without a unit is reported as zero, not as a missing unit.
    is_zero = re.fullmatch(r"[0.]*", text.strip())
    try:
        seconds = 0.0 if is_zero else parse_duration_s(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"{flag}: {exc}") from exc
    if not seconds:
        raise InvalidValueError(f'{flag}: must be greater than 0, such as "5s", not "{text}"')
    return seconds


_FLAG_PATHS = {
    "listen": ("server", "listen"),
    "name": ("node", "name"),
    "node_version": ("node", "version"),
    "prefix": ("server", "prefix"),
    "drain": ("server", "drain"),
    "allow_exec": ("security", "allow_exec"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}


def add_config_option(parser: argparse.ArgumentParser, *, is_for_client: bool = True) -> None:
    """A command about a node also finds the file of the node that systemd runs."""
    files = "svcnode.toml in this folder" + (", then /etc/svcnode/svcnode.toml" if is_for_client else "")
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        default=os.environ.get("SVCNODE_CONFIG") or None,
        help=f"configuration file (default: SVCNODE_CONFIG, then {files}; without a file, built-in defaults)",
    )


def utf8_text(argument: str) -> str:
    """The type of an argument that is sent to a node: always UTF-8, whatever the locale says."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError("not UTF-8 text") from None


def read_secret(option: str, argument: str) -> str:
    """The text itself or, for @FILE, the content of the file, which keeps a secret out of the list of processes."""
    if not argument.startswith("@"):
        return argument
    try:
        return Path(argument[1:]).read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise InvalidValueError(f"{option}: cannot read {argument[1:]}: {os_error_text(exc)}") from exc
    except ValueError:
        raise InvalidValueError(f"{option}: {argument[1:]} is not UTF-8 text") from None


def reason_text(argument: str) -> str:
    """The type of an argument that says why something is wrong, which is never refused for its form."""
    return os.fsencode(argument).decode("utf-8", "backslashreplace")


def add_control_options(
    parser: argparse.ArgumentParser, *, with_registry: bool = False, with_owner: bool = False
) -> None:
    """With `with_registry`, the command also works while the node is unreachable, through the registry of its replicas.

    With `with_owner`, what it writes there belongs to an owner. Otherwise it belongs to the node.
    """
    add_config_option(parser)
    receiver = parser.add_mutually_exclusive_group()
    receiver.add_argument(
        "--socket",
        metavar="PATH",
        default=os.environ.get("SVCNODE_CONTROL") or None,
        help="control socket of the node (default: SVCNODE_CONTROL, then the one in the configuration)",
    )
    parser.add_argument(
        "--by", type=utf8_text, metavar="NAME", help="who makes the change; it is recorded beside your user name"
    )
    if with_registry:
        add_registry_option(receiver, "instead of a running node: the registry of a node on several machines")
        parser.add_argument("--node", type=utf8_text, metavar="NAME", help="with --registry: which node")
    if with_owner:
        parser.add_argument(
            "--owner",
            type=utf8_text,
            metavar="NAME",
            help='with --registry: who owns the service (default: the host name and "-client")',
        )


def add_registry_option(parser: argparse._ActionsContainer, meaning: str) -> None:
    """The only option about the connection: secrets must not be in a list of processes, and TLS is the same for all."""
    parser.add_argument(
        "--registry",
        metavar="URL",
        help=f"{meaning}, such as etcd://user@10.0.0.1:2379; set the password and TLS in the environment, with "
        "SVCNODE_SHARING_PASSWORD, _TLS, _CA, _CLIENT_CERTIFICATE and _CLIENT_KEY",
    )


def service_client(arguments: argparse.Namespace) -> ControlClient | BlockingRegistryClient:
    """The client that registers and reports services, and that drains or maintains all replicas."""
    if arguments.registry is not None:
        from svcnode.cli import _registry_args

        if arguments.by is not None and "owner" in arguments:
            raise InvalidValueError(
                "--by: cannot be used with --registry, where a service has an owner; name it with --owner"
            )
        return _registry_args.service_client(arguments)
    for option in ("node", "owner"):
        if getattr(arguments, option, None):
            raise InvalidValueError(f"--{option}: only works with --registry")
    return control_client(arguments)


def control_client(arguments: argparse.Namespace) -> ControlClient:
    """Without `timeout`, the client uses its own."""
    from svcnode.control.client import DEFAULT_TIMEOUT, ControlClient

    by = arguments.by or os.environ.get("SUDO_USER", "")
    timeout = getattr(arguments, "timeout", DEFAULT_TIMEOUT)
    if arguments.socket is not None:
        return ControlClient(arguments.socket, timeout=timeout, by=by)
    from svcnode.config import find_node_file, load_control
    from svcnode.control.owner import ConfiguredControlClient

    file = find_node_file(arguments.config)
    control = load_control(file, os.environ)
    if control is None:
        raise InvalidValueError("the configuration has no control socket; name the socket of the node with --socket")
    return ConfiguredControlClient(control.listen, file, timeout=timeout, by=by)


def add_override_options(parser: argparse.ArgumentParser) -> None:
    """Options that override the file and the environment."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add(
        "--service",
        action="append",
        metavar="ID=URL",
        dest="services",
        help="also check this service, named by an id and the URL of its probe, such as "
        "db=postgresql://monitor@127.0.0.1/ledger; may be repeated",
    )
    add(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="where the node listens: host:port or unix:/path; may be repeated",
    )
    add("--name", help="name of the node")
    add("--node-version", metavar="VERSION", help='version of your node, such as "v1.4.2"')
    add("--prefix", action="append", help="path in front of the four endpoints (default: /svc); may be repeated")
    add("--drain", metavar="DURATION", help='how long the node answers 503 before it stops, such as "5s"')
    add("--allow-exec", action="store_true", help="allow exec: probes to run programs")
    add(
        "--log-level",
        metavar="LEVEL",
        help="log lines of this level and above: debug, info (default), warning or error",
    )
    add(
        "--log-format",
        metavar="FORMAT",
        help="text, json or auto (default), which is text in a terminal and JSON elsewhere",
    )


def settings_reader(file: Path | None, arguments: argparse.Namespace) -> Callable[[], Settings]:
    from svcnode.config import find_file, load
    from svcnode.config.sources import named_probes

    flags, services = _overrides(arguments), named_probes(getattr(arguments, "services", ()), "--service")
    # find_file runs at each reload: a file that was created since the start is found.
    return lambda: load(find_file(file), os.environ, flags, services)


def config_warnings(settings: Settings) -> dict[str, str]:
    """Warnings about what is valid but may not be what you meant: from the text to the event that is logged."""
    heartbeats = dict.fromkeys(_heartbeat_warnings(settings), "heartbeat_unsupported")
    targets = dict.fromkeys(_target_warnings(settings), "notification_target_unmatched")
    public = dict.fromkeys(_public_warnings(settings), "public_unmatched")
    return dict.fromkeys(_secret_warnings(settings), "config_readable") | heartbeats | targets | public


def _secret_warnings(settings: Settings) -> Iterator[str]:
    from svcnode.config.permissions import exposed_secret_line

    if (line := exposed_secret_line(settings.file, settings.secrets, os.environ)) is not None:
        yield (
            f"{settings.file}:{line} has a secret, and other users of this machine can read the file; write the secret "
            f'as "${{NAME}}" or {{ file = "…" }}, or take the permission away: chmod o-r {settings.file}'
        )


def _public_warnings(settings: Settings) -> Iterator[str]:
    """The warnings about [public]."""
    if settings.public is None:
        return
    services = [one.definition.service for one in settings.services]
    ids, groups = {service.id for service in services}, {service.group for service in services}
    for service_id in settings.public.services:
        if service_id not in ids:
            yield (
                f'[public] publishes "{service_id}", but the configuration has no such service; until a program '
                "registers it, the public page says that it may have problems"
            )
    for group in settings.public.groups:
        if group not in groups:
            yield f'[public] publishes the group "{group}", but no service in the configuration belongs to it'
    for tag in settings.public.tags:
        if not any(tag in service.tags for service in services):
            yield f'[public] publishes the tag "{tag}", but no service in the configuration has it'


def _target_warnings(settings: Settings) -> Iterator[str]:
    """For targets that name a service which is not in the file. A program or another replica may still register it."""
    services = [one.definition.service for one in settings.services]
    ids, groups = {service.id for service in services}, {service.group for service in services}
    tags = {tag for service in services for tag in service.tags}
    for route in () if settings.notify is None else settings.notify.routes:
        if unknown := sorted((route.services - ids) | (route.groups - groups) | (route.tags - tags)):
            names = ", ".join(f'"{name}"' for name in unknown)
            yield f"the alert target {route.name} is for {names}, but no service, group or tag has that name"


def _heartbeat_warnings(settings: Settings) -> list[str]:
    """For heartbeat services: without a control socket, nothing can send heartbeats to the node."""
    if settings.control is not None:
        return []
    return [
        f'"{service.definition.service.id}" waits for heartbeats, but the node has no control socket to receive them, '
        "so the service will be Down; set listen in [control], or use another probe, such as file: with max_age"
        for service in settings.services
        if service.status is None and service.definition.probe_config is None
    ]


def _overrides(arguments: argparse.Namespace) -> list[Override]:
    from svcnode.config import Override

    values = vars(arguments)
    return [
        Override(path, values[flag], f"--{flag.replace('_', '-')}")
        for flag, path in _FLAG_PATHS.items()
        if flag in values
    ]
