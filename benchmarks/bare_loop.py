"""A loop that reads any bytes and writes one constant response: the upper bound of every server here.

`python -m benchmarks.bare_loop PORT`. It parses nothing; the time is spent in the kernel and the load generator.
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
