# A FastAPI application with the operator page of its node at /status.
#
#     pip install . fastapi uvicorn
#     python -m http.server 9000 &                        # plays the indexer
#     uvicorn --app-dir examples status_page:app
#     xdg-open http://localhost:8000/status/              # from this machine; from others, set OPERATOR_TOKEN
#     svcnode explain http://localhost:8000/status --service ledger
#     curl localhost:8000/metrics                         # of the application and of the node

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from svcnode import Node, OperatorOptions, asgi, prometheus_collector

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()
INDEXER_PORT = int(os.environ.get("INDEXER_PORT", "9000"))

with closing(sqlite3.connect(LEDGER)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS entries (amount INTEGER)")

node = Node("validator-7", version="v1.4.2")
node.record_history(LEDGER.with_name("history.db"), max_age="90d")
if "WEBHOOK" in os.environ:
    node.notify(webhook="${WEBHOOK}", services="all")

node.register("ledger", name="Ledger", probe=f"sqlite:{LEDGER}", impact="critical", interval="500ms", fall=2)
node.register("indexer/main", name="Indexer", probe=f"tcp://127.0.0.1:{INDEXER_PORT}", interval="500ms", fall=2)

app = FastAPI(lifespan=node.lifespan)  # checks, records and notifies while the application runs
app.mount("/status", asgi(node, operator=OperatorOptions(token=os.environ.get("OPERATOR_TOKEN"))))
REGISTRY.register(prometheus_collector(node))


@app.get("/metrics")
def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
