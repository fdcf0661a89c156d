# A program without a web framework or an event loop: it writes blocks into a ledger and serves its node.
#
#     pip install .
#     python examples/worker.py
#     curl -i localhost:8000/svc/node/health              # 206 while it catches up, then 200

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

from svcnode import Node, wsgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()
PORT = int(os.environ.get("PORT", "8000"))
BEHIND = 3  # blocks to catch up with before the node is healthy

node = Node("replayer-1", version="v0.3.0", starting=True)  # at best 206 until node.started()

# The loop below reports. If it hangs or ends, the service is Down after 5 s.
replay = node.register("replay/main", name="Replay", description="Writes blocks", impact="critical", ttl="5s")


@node.check("ledger", name="Ledger", description="SQLite file", interval="500ms", fall=2)
def ledger_can_be_read() -> None:
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=ro", uri=True)) as database:
        database.execute("SELECT count(*) FROM blocks")


def write_block(height: int) -> None:
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=rw", uri=True)) as database, database:
        database.execute("INSERT INTO blocks VALUES (?)", (height,))


def replay_blocks(stopping: threading.Event) -> None:
    height = 0
    while not stopping.wait(0.2):
        try:
            write_block(height + 1)
        except sqlite3.Error as exc:
            replay.down(str(exc))
            continue
        height += 1
        if height < BEHIND:
            replay.initializing(f"block {height} of {BEHIND}")
        else:
            replay.up(f"block {height}")
            node.started()


class Server(ThreadingMixIn, WSGIServer):
    """One thread per request, so that a slow client does not block others."""

    daemon_threads = True


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with closing(sqlite3.connect(LEDGER)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS blocks (height INTEGER)")

    with make_server("127.0.0.1", PORT, wsgi(node), server_class=Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        node.start()
        replay_blocks(stopping)
        server.shutdown()
        node.stop()


if __name__ == "__main__":
    main()
