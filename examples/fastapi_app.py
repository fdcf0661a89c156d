# A FastAPI application that answers for its node.
#
#     pip install svcnode fastapi uvicorn
#     python -m http.server 9000 &                        # stands in for the indexer
#     uvicorn --app-dir examples fastapi_app:app
#     curl -i localhost:8000/svc/node/health              # 206: no block has come yet
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

# No function looks at this one: the program reports. A minute without a block and it is Down.
blocks = node.register("blocks", name="Block feed", description="Blocks pushed by the sequencer", ttl="1m")
blocks.initializing("waiting for the first block")


@node.check("ledger", name="Ledger", description="SQLite file", impact="critical", interval="500ms", fall=2)
def ledger_can_be_read() -> None:
    """A plain function: it runs in a thread. Returning is good, raising is not."""
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=ro", uri=True)) as database:
        database.execute("SELECT count(*) FROM entries")


@node.check("indexer/main", name="Indexer", description="Follows the chain", interval="500ms", fall=2)
async def indexer_accepts() -> None:
    """A coroutine: it runs in the application's event loop. `timeout` bounds it; here half the interval."""
    _, writer = await asyncio.open_connection("127.0.0.1", INDEXER_PORT)
    writer.close()
    await writer.wait_closed()


app = FastAPI(lifespan=node.lifespan)  # looks for as long as the application runs


@app.post("/blocks/{number}")
def take_block(number: int) -> dict[str, int]:
    blocks.up(f"block {number}")
    return {"taken": number}


app.mount("/", asgi(node))  # the last line: it takes every path that no route above it took
