# The node as the main ASGI application, under two prefixes.
#
#     pip install . uvicorn
#     python -m http.server 9000 &                        # plays the indexer
#     uvicorn --app-dir examples plain_asgi:app
#     curl -i localhost:8000/svc/node/health
#     curl -i localhost:8000/eigen/node/health

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from svcnode import Node, asgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()
INDEXER_PORT = int(os.environ.get("INDEXER_PORT", "9000"))

with closing(sqlite3.connect(LEDGER)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS entries (amount INTEGER)")

node = Node("validator-7", version="v1.4.2")

node.register(
    "ledger",
    name="Ledger",
    description="SQLite file",
    probe=f"sqlite:{LEDGER}",
    impact="critical",
    interval="500ms",
    fall=2,
)


@node.check("indexer/main", name="Indexer", description="Follows the chain", interval="500ms", fall=2)
async def indexer_accepts() -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", INDEXER_PORT)
    writer.close()
    await writer.wait_closed()


app = asgi(node, prefix=["/svc", "/eigen"])  # the server's lifespan starts and stops probing
