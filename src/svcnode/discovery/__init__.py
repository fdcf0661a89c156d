"""Which known services run on this host, and the configuration that looks at them.

known.py     the table: each service, its usual ports, how it is known, and how it is written down
speech.py    how a service is known by what it says; no driver is needed for that
search.py    asks all of them at once
choice.py    for each that was found, the deepest probe that works here as it is
document.py  the file
"""

from __future__ import annotations

from svcnode.discovery.choice import Choice, choose
from svcnode.discovery.document import DEFAULT_PORT, document, free_port, name_from
from svcnode.discovery.known import KNOWN, Known
from svcnode.discovery.search import Found, Search, Unconfirmed, search

__all__ = [
    "DEFAULT_PORT",
    "KNOWN",
    "Choice",
    "Found",
    "Known",
    "Search",
    "Unconfirmed",
    "choose",
    "document",
    "free_port",
    "name_from",
    "search",
]
