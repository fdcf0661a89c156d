"""The command line. What a command needs is imported by that command, so that none pays for another.

argparse, because importing click alone takes longer than importing asyncio, and `serve` is started often.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from svcnode.config import Override, Settings

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except ConfigError as exc:
        from svcnode.logs import one_line

        print(f"svcnode: {one_line(str(exc))}", file=sys.stderr)  # noqa: T201  all that a user gets
        return EXIT_USAGE
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:  # before the agent heeds signals, or in a command that does not
        return 128 + signal.SIGINT
    finally:
        _give_up_on_readers_that_left()


def _give_up_on_readers_that_left() -> None:
    """What cannot be delivered any more must not become a traceback or another exit code at the very end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="svcnode",
        allow_abbrev=False,
        description="A validator-service node that answers for its health with evidence, not claims.",
    )
    parser.add_argument("--version", action="version", version=f"svcnode {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_check_config(commands)
    return parser


# ---- svcnode serve


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="answer for the node over HTTP",
        description="Answer for the node over HTTP. SIGHUP reads the configuration again, SIGTERM drains and stops.",
        epilog="Every single value of the file can also be set in the environment as SVCNODE_<TABLE>_<KEY>, such as "
        "SVCNODE_SERVER_LISTEN; options win over the environment, and the environment over the file.",
    )
    serve.set_defaults(command=_serve)
    _add_config(serve)
    add = partial(serve.add_argument, default=argparse.SUPPRESS)
    add("--listen", action="append", metavar="ADDRESS", help="host:port or unix:/path; may be repeated")
    add("--name", help="name of the node")
    add("--node-version", metavar="VERSION", help='version of the node, such as "v1.4.2"')
    add("--prefix", action="append", help="path prefix of the interface (default: /svc); may be repeated")
    add("--drain", metavar="DURATION", help='how long health answers 503 before the end, such as "5s"')
    add("--log-level", metavar="LEVEL", help="debug, info (default), warning or error")
    add("--log-format", metavar="FORMAT", help="auto (default: text on a terminal), text or json")


_FLAGS = {
    "listen": ("server", "listen"),
    "name": ("node", "name"),
    "node_version": ("node", "version"),
    "prefix": ("server", "prefix"),
    "drain": ("server", "drain"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}


def _serve(arguments: argparse.Namespace) -> int:
    # A reload that is asked for before the agent heeds signals would end it, and has nothing to reload yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    from svcnode import agent, logs

    read_settings = _settings_reader(arguments.config, arguments)
    settings = read_settings()
    logs.set_up(settings.log_level, settings.log_format)
    return agent.run(settings, read_settings)


# ---- svcnode check-config


def _add_check_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check-config",
        allow_abbrev=False,
        help="say whether a configuration can be used",
        description="Say whether a configuration can be used, and what it would do. Exit 0 or 2.",
    )
    check.set_defaults(command=_check_config)
    _add_config(check)
    check.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the same as --config FILE")


def _check_config(arguments: argparse.Namespace) -> int:
    from svcnode.config import find_file
    from svcnode.web.listen import tls_context

    settings = _settings_reader(arguments.file or arguments.config, arguments)()
    if settings.tls is not None:
        tls_context(settings.tls.certificate, settings.tls.key)
    addresses = ", ".join(map(str, settings.listen))
    where = find_file(arguments.file or arguments.config) or "no file, the embedded default"
    lines = [f"The configuration is fine ({where}): {settings.node_name} {settings.node_version} on {addresses}"]
    for service in settings.services:
        about = service.definition.service
        how = "probed" if service.status is None else f"fixed at {service.status.value}"
        lines.append(f"  {about.id}: {about.name} ({how}, impact {about.impact.value})")
    print("\n".join(lines), flush=True)  # noqa: T201
    return 0


# ---- shared by commands that read the configuration


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        default=os.environ.get("SVCNODE_CONFIG") or None,
        help="the TOML file; without it SVCNODE_CONFIG, svcnode.toml in this folder, or the embedded default",
    )


def _settings_reader(file: Path | None, arguments: argparse.Namespace) -> Callable[[], Settings]:
    from svcnode.config import find_file, load

    flags = _overrides(arguments)
    # Looked for each time: a file that is written while the node runs is found by the next reload.
    return lambda: load(find_file(file), os.environ, flags)


def _overrides(arguments: argparse.Namespace) -> list[Override]:
    from svcnode.config import Override

    given = vars(arguments)
    return [
        Override(path, given[flag], f"--{flag.replace('_', '-')}") for flag, path in _FLAGS.items() if flag in given
    ]
