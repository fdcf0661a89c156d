"""Registration and heartbeats from other programs: `Client` and `AsyncClient` for them, and the side of the node.

client.py     the clients
store.py      the documents on disk
resources.py  what each document means for the node
api.py        the HTTP API of the control socket
push.py       reports over TCP
"""

from svcnode.control.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
