"""`svcnode conform URL`: judges any node, in any language, by the interface."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.cli.parsers import CommandParser, Commands

EXIT_NOT_JUDGED = 3

_EPILOG = """\
levels:
  must    the interface document states it
  should  the document implies it, or a client would break or be misled without
  advice  the document is silent; what we found to work best

All checks are made, and what fails is shown; --level says which of them count
for the exit code.

the four endpoints, after the URL and the prefix:
  /node   /node/health   /node/services   /node/services/{id}/health

what is sent:
  GET and HEAD to the four endpoints, with and without ?version=, to one id and
  a few paths that do not exist, and 50 requests at once.
  POST, PUT, PATCH, DELETE and OPTIONS to the four endpoints, without a body, to
  see that they are refused; --no-other-methods leaves those out.

exit codes:
  0  it conforms          1  it does not
  3  nothing was judged: it cannot be reached, none of its first answers can be
     read as HTTP, or the command line is wrong
  130  ended by Ctrl-C, with what was judged by then (at once by a second one)

examples:
  svcnode conform http://127.0.0.1:8420
  svcnode conform https://node.example.com --ca ca.pem --level must
  svcnode conform http://127.0.0.1:9010 --prefix /eigen --junit conform.xml
"""


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "conform",
        allow_abbrev=False,
        help="judge a node in any language by the interface",
        description="Judge a node in any language by the interface, clause by clause, from outside.\n"
        "What fails is shown with the request, what was expected, what came, and how to\nmend it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.exit_after_misuse = EXIT_NOT_JUDGED
    add = parser.add_argument
    add(
        "url",
        metavar="URL",
        help="base URL of the node, such as http://127.0.0.1:8420 (http:// may be left out); "
        "user:password@ before the host is sent as basic authentication and never shown",
    )
    add("--prefix", default="/svc", help="what the four endpoints stand under (default: /svc)")
    add("--level", choices=("must", "should", "advice"), default="should", help="what counts (default: should)")
    add("--timeout", default="5s", metavar="DURATION", help="how long one answer may take (default: 5s)")
    add("--ca", metavar="FILE", help="PEM file with the authority that signed the node's certificate")
    add("--no-other-methods", action="store_true", help="send nothing but GET and HEAD")
    add("--json", action="store_true", help="all of it as one JSON object")
    add(
        "--junit",
        metavar="FILE",
        help='write a JUnit report as well, for the pages of a CI; "-" writes it alone, to stdout',
    )
    add("-v", "--verbose", action="store_true", help="show every check, and why some were not judged")
    return parser


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.conform_run import show_judgement

    return show_judgement(arguments)
