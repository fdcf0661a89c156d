"""How other programs register services and send heartbeats: the clients, and the side of the node.

client.py             the clients
types.py              their options and results, for type checkers
store.py              the documents on disk
changes.py            a request to change a document, and its transaction
document_kind.py      what a kind of document is: what it accepts, and what it means for the node
service_documents.py  the kinds of a service: its registration, reports and runs
documents.py          the other kinds, and all of them by path
silence.py            which registered services are removed because they are silent
resources.py          all documents together
app.py                the application on the control socket, which loads the rest late
api.py                its HTTP API
push.py               reports over TCP
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.control.client import AsyncControlClient, ControlClient

__all__ = ["AsyncControlClient", "ControlClient"]


def __getattr__(name: str) -> object:
    """Loaded on first use: a node needs neither."""
    if name in __all__:
        from svcnode.control import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
