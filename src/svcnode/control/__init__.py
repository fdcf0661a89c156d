"""Registration and heartbeats from other programs: `Client` and `AsyncClient` for them, and the side of the node.

client.py     the clients
store.py      the documents on disk
resources.py  what each document means for the node
changes.py    a request to change a document, and its transaction
documents.py  one class for each kind of document
app.py        the application on the control socket, which loads the rest late
api.py        its HTTP API
push.py       reports over TCP
"""

from svcnode.control.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
