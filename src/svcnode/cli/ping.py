"""`svcnode ping [URL]`: whether a node answers, whatever its health."""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, positive_duration_s
from svcnode.cli.operator_url import configured_address, node_address
from svcnode.cli.output import show
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser
    from svcnode.core.address import Address

PATH = "/livez"
_EPILOG = """\
exit codes:
  0  the node answers
  1  it does not
  2  invalid arguments or configuration

examples:
  svcnode ping
  svcnode ping 127.0.0.1:8420 --timeout 2s
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        f"Does the process answer at all? Request {PATH} of a node, which is 200 whatever the health is. Use it as the "
        "health check of a container, which must not restart because a database is down."
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        help="the node: host:port, a URL, or unix:/path (default: the node of the configuration)",
    )
    add_config_option(parser)
    parser.add_argument(
        "--timeout", default="5s", metavar="DURATION", help="how long connecting and answering may take (default: 5s)"
    )


def run_command(arguments: argparse.Namespace) -> int:
    timeout_s = positive_duration_s("--timeout", arguments.timeout)
    address = configured_address(arguments.config) if arguments.url is None else node_address(arguments.url)
    try:
        code = _request(address, timeout_s)
    except OSError as exc:
        problem = os_error_text(exc)
    except http.client.HTTPException:
        problem = "what answers there does not speak HTTP"
    else:
        if code == http.client.OK:
            show(f"{address} answers", sys.stdout)
            return 0
        problem = f"{PATH} answered {code} instead of 200"
    show(f"svcnode: {address} does not answer: {problem}", sys.stderr)
    return 1


def _request(address: Address, timeout_s: float) -> int:
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = _connect(address, timeout_s)
    try:
        connection.request("GET", PATH)
        return connection.getresponse().status
    finally:
        connection.close()


def _connect(address: Address, timeout_s: float) -> socket.socket:
    if address.scheme == "unix":
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(timeout_s)
            connected.connect(address.path)
        except OSError:
            connected.close()
            raise
        return connected
    plain = socket.create_connection((address.host, address.port), timeout_s)
    return _tls_context().wrap_socket(plain) if address.scheme == "https" else plain


def _tls_context() -> ssl.SSLContext:
    """Accepts any certificate: nothing secret is sent, and the node may not have read a renewed certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
