"""The command line. What a command needs beyond click is imported by that command."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from svcnode.core.errors import ConfigError
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.config import Override, Settings

CONFIG_OPTION = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="SVCNODE_CONFIG",
    show_envvar=True,
    help="The TOML file. Without it: svcnode.toml in this folder, or the embedded default.",
)


class _Group(click.Group):
    """Turns our own errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  as click has it
        try:
            return super().invoke(ctx)
        except ConfigError as exc:
            click.echo(f"svcnode: {exc}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="svcnode", message="%(prog)s %(version)s")
def main() -> None:
    """A validator-service node that answers for its health with evidence, not claims."""


@main.command()
@CONFIG_OPTION
@click.option("--listen", multiple=True, metavar="ADDRESS", help="host:port or unix:/path; may be repeated.")
@click.option("--name", help="Name of the node.")
@click.option("--node-version", metavar="VERSION", help='Version of the node, such as "v1.4.2".')
@click.option("--prefix", multiple=True, help="Path prefix of the interface; may be repeated.  [default: /svc]")
@click.option("--drain", metavar="DURATION", help='How long health answers 503 before the end, such as "5s".')
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--log-format", help="auto, text or json; auto is text on a terminal.")
def serve(config_file: Path | None, **flags: Any) -> None:  # noqa: ANN401  each is an option above
    """Answer for the node over HTTP.

    Every value of the file can also be set in the environment, as SVCNODE_<TABLE>_<KEY>; options win over both.
    SIGHUP reads the configuration again, SIGTERM drains and stops.
    """
    from svcnode import agent, logs

    read_settings = _reader(config_file, flags)
    settings = read_settings()
    logs.set_up(settings.log_level, settings.log_format)
    sys.exit(agent.run(settings, read_settings))


@main.command()
@CONFIG_OPTION
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check_config(config_file: Path | None, file: Path | None) -> None:
    """Say whether a configuration can be used, and what it would do."""
    from svcnode.web.listen import tls_context

    settings = _reader(file or config_file, {})()
    if settings.tls is not None:
        tls_context(settings.tls.certificate, settings.tls.key)
    listen = ", ".join(map(str, settings.listen))
    click.echo(f"The configuration is fine: {settings.node_name} {settings.node_version} on {listen}")
    for service in settings.services:
        how = "probed" if service.status is None else f"fixed at {service.status.value}"
        about = service.definition.service
        click.echo(f"  {about.id}: {about.name} ({how}, impact {about.impact.value})")


_FLAG_PATHS = {
    "listen": ("server", "listen"),
    "name": ("node", "name"),
    "node_version": ("node", "version"),
    "prefix": ("server", "prefix"),
    "drain": ("server", "drain"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}


def _reader(named: Path | None, flags: dict[str, Any]) -> Callable[[], Settings]:
    from svcnode.config import find_file, load

    return partial(load, find_file(named), os.environ, tuple(_overrides(flags)))


def _overrides(flags: dict[str, Any]) -> list[Override]:
    from svcnode.config import Override

    return [
        Override(_FLAG_PATHS[name], list(value) if isinstance(value, tuple) else value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value not in (None, ())
    ]
