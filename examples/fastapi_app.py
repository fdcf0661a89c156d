# A FastAPI application that serves its node.
#
#     pip install . fastapi uvicorn
#     python -m http.server 9000 &                        # plays the indexer
#     uvicorn --app-dir examples fastapi_app:app
#     curl -i localhost:8000/svc/node/health              # 206: no block received yet
#     curl -X POST localhost:8000/blocks/1
#     curl -i localhost:8000/svc/node/health              # 200, until you stop the indexer or move ledger.db

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from fastapi import FastAPI

from svcnode import Node, asgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()
INDEXER_PORT = int(os.environ.get("INDEXER_PORT", "9000"))

with closing(sqlite3.connect(LEDGER)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS entries (amount INTEGER)")

node = Node("validator-7", version="v1.4.2")

# No probe: the program reports. Without a block for one minute the service is Down.
blocks = node.register("blocks", name="Block feed", description="Blocks pushed by the sequencer", ttl="1m")
blocks.initializing("waiting for the first block")


@node.check("ledger", name="Ledger", description="SQLite file", impact="critical", interval="500ms", fall=2)
def ledger_can_be_read() -> None:
    """A plain function runs in a thread. If it returns, the check succeeded; if it raises, the check failed."""
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=ro", uri=True)) as database:
        database.execute("SELECT count(*) FROM entries")


@node.check("indexer/main", name="Indexer", description="Follows the chain", interval="500ms", fall=2)
async def indexer_accepts() -> None:
    """A coroutine runs in the application's event loop. Its timeout is half the interval by default."""
    _, writer = await asyncio.open_connection("127.0.0.1", INDEXER_PORT)
    writer.close()
    await writer.wait_closed()


app = FastAPI(lifespan=node.lifespan)  # probes while the application runs


@app.post("/blocks/{number}")
def take_block(number: int) -> dict[str, int]:
    blocks.up(f"block {number}")
    return {"taken": number}


app.mount("/", asgi(node))  # last, because it handles every path without a route above
