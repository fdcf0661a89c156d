"""`svcnode serve`: answer for the node over HTTP."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, add_override_options, heartbeat_warnings, settings_reader

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser, Commands


def configure(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="answer for the node over HTTP",
        description="Answer for the node over HTTP. SIGHUP reads the configuration again, SIGTERM drains and stops.",
        epilog="Every single value of the file can also be set in the environment as SVCNODE_<TABLE>_<KEY>, such as "
        "SVCNODE_SERVER_LISTEN; options win over the environment, and the environment over the file.",
    )
    add_config_option(parser)
    add_override_options(parser)
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    # A reload that is asked for before the agent heeds signals would end it, and has nothing to reload yet.
    is_under_nohup = signal.signal(signal.SIGHUP, signal.SIG_IGN) is signal.SIG_IGN

    from svcnode import agent, logs

    read_settings = settings_reader(arguments.config, arguments)
    settings = read_settings()
    logs.configure(settings.log_level, settings.log_format)
    for text in heartbeat_warnings(settings):
        logging.getLogger("svcnode").warning("%s", text)
    return agent.run(settings, read_settings, ignore_hangup=is_under_nohup)
