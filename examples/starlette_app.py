# A Starlette application with the node mounted under a path, and its own lifespan.
#
#     pip install . starlette uvicorn
#     python -m http.server 9000 &                        # plays the indexer
#     uvicorn --app-dir examples starlette_app:app
#     curl -i localhost:8000/node-api/svc/node/health

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from svcnode import Node, Verdict, asgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()
INDEXER_PORT = int(os.environ.get("INDEXER_PORT", "9000"))

node = Node("validator-7", version="v1.4.2")


@node.check("ledger", name="Ledger", description="SQLite file", impact="critical", interval="500ms", fall=2)
def ledger_has_entries() -> Verdict:
    """Return a verdict for more than success or failure: an empty ledger is not ready."""
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=ro", uri=True)) as database:
        (count,) = database.execute("SELECT count(*) FROM entries").fetchone()
    return Verdict.ready(f"{count} entries") if count else Verdict.not_ready("no entries yet")


@node.check("indexer/main", name="Indexer", description="Follows the chain", interval="500ms", fall=2)
async def indexer_accepts() -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", INDEXER_PORT)
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, sqlite3.Connection]]:
    """Open the application's own resources, and probe inside the block."""
    with closing(sqlite3.connect(LEDGER)) as ledger:
        ledger.executescript("CREATE TABLE IF NOT EXISTS entries (amount INTEGER); INSERT INTO entries VALUES (1)")
        async with node.probing():
            yield {"ledger": ledger}


async def balance(request: Request) -> JSONResponse:
    (amount,) = request.state.ledger.execute("SELECT sum(amount) FROM entries").fetchone()
    return JSONResponse({"balance": amount})


app = Starlette(
    routes=[Route("/balance", balance), Mount("/node-api", asgi(node))],
    lifespan=lifespan,
)
