# A Flask application that serves its node, under a server that forks.
#
#     pip install . flask gunicorn
#     gunicorn --chdir examples --preload --workers 2 flask_app:app
#     curl -i localhost:8000/svc/node/health

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from flask import Flask

from svcnode import Node, wsgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()

with closing(sqlite3.connect(LEDGER)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS entries (amount INTEGER)")

node = Node("validator-7", version="v1.4.2")


def entry_count() -> int:
    with closing(sqlite3.connect(f"{LEDGER.as_uri()}?mode=ro", uri=True)) as database:
        (count,) = database.execute("SELECT count(*) FROM entries").fetchone()
    return int(count)


@node.check("ledger/main", name="Ledger", description="SQLite file", impact="critical", interval="500ms", fall=2)
def ledger_can_be_read() -> None:
    entry_count()


app = Flask(__name__)


@app.get("/entries")
def entries() -> dict[str, int]:
    return {"entries": entry_count()}


# The node handles paths under /svc, Flask all others. Each worker probes, from its first request on.
app.wsgi_app = wsgi(node, fallback=app.wsgi_app)  # type: ignore[assignment, method-assign]
