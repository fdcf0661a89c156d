"""`svcnode explain [URL] [--service ID]`: explain the status of a service or the health of a node."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.cli._args import EXIT_BAD, EXIT_PARTIAL, EXIT_UNKNOWN, add_config_option, program
from svcnode.cli.operator_requests import fetch_problems, operator_requests
from svcnode.cli.operator_url import operator_url_from
from svcnode.cli.output import show
from svcnode.cli.terminal.explain.explanation import explain_node, explain_service
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.errors import InvalidValueError, ServiceNotFoundError, UnexpectedResponseError
from svcnode.core.model import Health, Status
from svcnode.core.problems import document_from_details
from svcnode.core.text import closest_match, join_first
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli._args import CommandParser
    from svcnode.cli.operator_url import OperatorUrl
    from svcnode.cli.terminal.explain.explanation import Explanation

_EPILOG = """\
address and token:
  The address is the URL, or the operator address in the configuration that svcnode
  serve would use. A node on another machine, or with a configured operator_token,
  requires its operator token: --token, SVCNODE_SECURITY_OPERATOR_TOKEN, or,
  without a URL, the token in the configuration.

exit codes:
  0  the service is Up, or the node is healthy
  1  the service is Initializing, or the node is partially healthy
  2  invalid arguments or configuration
  3  the service is Down, or the node is unhealthy
  4  the node is unreachable, or the service does not exist

examples:
  svcnode explain
  svcnode explain --service db-1
  svcnode explain https://node.example.com:8420 --service db-1 --token @token.txt
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Explain why a service is Up, Initializing or Down: the last checks, the rule that "
        "decided, what would change the status, and how to fix the cause. Without "
        "--service: explain the health of the node, and its problems, the worst first."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    add = parser.add_argument
    add("url", nargs="?", type=_node_url, metavar="URL", help="address of the node: host:port, a URL, or unix:/path")
    add("--service", metavar="ID", help="id of a service")
    add("--token", metavar="TOKEN", help="operator token, or @FILE to read it from a file")
    add("--ca", metavar="FILE", help="PEM file of the certificate authority to trust, instead of the system's")
    add("--json", action="store_true", help="print the node's details as one JSON object")
    add_config_option(parser)


def _node_url(text: str) -> str:
    """The URL of a node. A single word is probably meant as the id of a service: a host would need its port, too."""
    if re.fullmatch(r"[^:/.]*", text):
        raise argparse.ArgumentTypeError(f"to explain a service, write --service {shlex.quote(text)}")
    return text


MAX_LISTED_IDS = 20
_EXIT_CODES = {
    Status.UP: 0,
    Status.INITIALIZING: EXIT_PARTIAL,
    Status.DOWN: EXIT_BAD,
    Health.HEALTHY: 0,
    Health.PARTIAL: EXIT_PARTIAL,
    Health.UNHEALTHY: EXIT_BAD,
}


def run_command(arguments: argparse.Namespace) -> int:
    url = operator_url_from(arguments)
    is_short = arguments.service is None and not arguments.json
    with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        document, problems = runner.run(_fetch(url, arguments, is_short=is_short))
    try:
        explanation = _explain(document, problems, arguments)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UnexpectedResponseError(
            f"{url.display}: cannot read /details; the node may run another version than this svcnode ({__version__})"
        ) from exc
    with suppress(BrokenPipeError):
        if arguments.json:
            show(json.dumps(document), sys.stdout)
        else:
            _render(explanation)
    return _EXIT_CODES[explanation.status]


def _explain(document: Any, problems: Any, arguments: argparse.Namespace) -> Explanation:  # noqa: ANN401  any JSON
    command = shlex.join(_same_command(arguments))
    if arguments.service is not None:
        return explain_service(document, None if problems is None else problems["node"], command)
    return explain_node(document_from_details(document) if "problems" not in document else document, command)


def _same_command(arguments: argparse.Namespace) -> Iterator[str]:
    """This command, for the same node. A token is not repeated, but the file that has it."""
    yield program()
    yield "explain"
    if arguments.url is not None:
        yield arguments.url
    token = arguments.token if (arguments.token or "").startswith("@") else arguments.token and "…"
    config = None if arguments.config is None else str(arguments.config)
    options = {"--config": config, "--token": token, "--ca": arguments.ca}
    for option, value in options.items():
        if value is not None and value != os.environ.get("SVCNODE_CONFIG"):
            yield from (option, value)


def _render(explanation: Explanation) -> None:
    if sys.stdout is not None and sys.stdout.isatty():
        from svcnode.cli.terminal.render import print_explanation

        print_explanation(explanation, sys.stdout)
    else:
        show("\n".join(explanation.lines), sys.stdout)


# ---- requests


async def _fetch(url: OperatorUrl, arguments: argparse.Namespace, *, is_short: bool) -> tuple[Any, Any]:
    """What is asked for and, for a service, the problems of its node, whose health it may not explain alone."""
    if is_short:
        return await fetch_problems(url), None
    details = await fetch_details(url, arguments.service)
    return details, None if arguments.json or arguments.service is None else await fetch_problems(url)


async def fetch_details(url: OperatorUrl, service_id: str | None) -> Any:  # noqa: ANN401  any JSON
    async with operator_requests(url) as get_json:
        if service_id is None:
            return await get_json("/details")
        try:
            return await get_json(f"/details/{_path_segment(service_id)}")
        except ServiceNotFoundError:
            details = await get_json("/details")
            raise ServiceNotFoundError(_unknown_service_text(service_id, details, url)) from None


def _path_segment(service_id: str) -> str:
    """An id as one path segment; "." and ".." would be resolved as relative paths."""
    try:
        segment = quote(service_id, safe="")
    except UnicodeEncodeError:
        raise InvalidValueError(f"invalid service id {service_id!r}: cannot be encoded in a URL") from None
    if not segment:
        raise InvalidValueError("service id is empty")
    return segment if segment.strip(".") else segment.replace(".", "%2E")


def _unknown_service_text(service_id: str, details: Any, url: OperatorUrl) -> str:  # noqa: ANN401
    services = details.get("services") if isinstance(details, dict) else None
    ids = [str(service.get("id")) for service in services or () if isinstance(service, dict)]
    near = closest_match(service_id, ids)
    hint = f' Did you mean "{near}"?' if near else ""
    listed = join_first(ids, MAX_LISTED_IDS) or "none"
    return f'service not found: "{service_id}" at {url.display}.{hint} Services: {listed}'
