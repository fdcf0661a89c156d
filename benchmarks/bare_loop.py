"""A loop that reads whatever comes and writes one answer, and does nothing else: what the load gets out of no server.

`python -m benchmarks.bare_loop PORT`. It knows no HTTP, no clock and no node. A server that comes near it has nothing left
to gain on this machine: the rest is the kernel's, and the load's.
"""

from __future__ import annotations

import os
import select
import socket
import sys

from benchmarks.payloads import EXTRA_HEADERS

REQUEST_BYTES = 4096
HEADERS = {"Content-Length": "0", **EXTRA_HEADERS, "Date": "Sun, 15 Nov 2026 12:00:00 GMT"}
RESPONSE = "\r\n".join(["HTTP/1.1 200 OK", *map(": ".join, HEADERS.items()), "", ""]).encode()


def serve(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    clients: dict[int, socket.socket] = {}
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                client, _ = listener.accept()
                clients[client.fileno()] = client
                epoll.register(client, select.EPOLLIN)
            elif _read(number):
                os.write(number, RESPONSE)
            else:
                clients.pop(number).close()


def _read(number: int) -> bool:
    try:
        return bool(os.read(number, REQUEST_BYTES))
    except ConnectionResetError:
        return False


if __name__ == "__main__":
    serve(int(sys.argv[1]))
