"""`svcnode serve`: check the services and serve the node's health over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import signal
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, add_override_options, config_warnings, settings_reader

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser

_EPILOG = """\
settings:
  You can set every single value of the file in the environment too, as
  SVCNODE_<TABLE>_<KEY>, such as SVCNODE_SERVER_LISTEN, and services as
  SVCNODE_SERVICES="ID=URL ID=URL". Options override the environment, and the
  environment overrides the file.

exit codes:
  0        stopped by a signal
  1        cannot start or go on, for example because an address is in use
  2        invalid arguments or configuration
  128 + N  ended at once by a second signal N

examples:
  svcnode serve
  svcnode serve --config /etc/svcnode/svcnode.toml
  svcnode serve --name my-node --service db=postgresql://monitor@127.0.0.1/ledger
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Run the node: check its services in the background, and serve its health over HTTP. "
        "SIGHUP reloads the configuration, SIGUSR1 logs what is not Up, and SIGTERM drains and stops the node."
    )
    parser.epilog = _EPILOG
    add_config_option(parser, is_for_client=False)
    add_override_options(parser)


def _survive_signals() -> None:
    """SIGUSR2, which means nothing to a node but may come from a log rotation, would end Python. So would SIGHUP and
    SIGUSR1 until the agent installs its handlers; there is nothing to reload or to log yet.

    With handlers that do nothing, not ignored: a program of an exec: probe would inherit that.
    """
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: None)


def run_command(arguments: argparse.Namespace) -> int:
    _survive_signals()
    if os.getpid() == 1:  # of a container
        from svcnode.cli._container_init import continue_in_child

        continue_in_child()
    is_under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    gc.disable()  # modules stay loaded: searching them for garbage, now or later, takes time for nothing
    from svcnode.agent import agent, logs  # after the signal: loading them takes time

    gc.freeze()
    gc.enable()
    read_settings = settings_reader(arguments.config, arguments)
    settings = read_settings()
    logs.configure(settings.log_level, settings.log_format)
    for text, event in config_warnings(settings).items():
        logging.getLogger("svcnode").warning("%s", text, extra={"event": event})
    return agent.run(settings, read_settings, ignore_hangup=is_under_nohup)
