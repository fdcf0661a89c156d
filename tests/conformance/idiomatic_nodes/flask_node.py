"""A node on Flask. With the argument "naive" it takes an empty version for none, and sends bodies with health."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flask import Flask, Response, jsonify, request

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

SERVICES = [
    {"id": "db", "name": "Database", "description": "Holds the ledger", "status": "Up"},
    {"id": "indexer", "name": "Indexer", "description": "Follows the chain", "status": "Initializing"},
    {"id": "storage", "name": "Storage", "description": "Keeps the blobs", "status": "Down"},
]
CODES = {"Up": 200, "Initializing": 206, "Down": 503}
IS_NAIVE = "naive" in sys.argv

app = Flask(__name__)


@app.before_request
def require_supported_version() -> ResponseReturnValue | None:
    version = request.args.get("version")
    is_unversioned = not version if IS_NAIVE else version is None
    if is_unversioned or version in ("v0.0.1", "0.0.1"):
        return None
    return jsonify(message="API version not found"), 404


@app.get("/svc/node")
def identity() -> Response:
    return jsonify(node_name="flask", spec_version="v0.0.1", node_version="v1.0.0")


@app.get("/svc/node/health")
def health() -> ResponseReturnValue:
    return "", 206


@app.get("/svc/node/services")
def services() -> Response:
    return jsonify(services=SERVICES)


@app.get("/svc/node/services/<service_id>/health")
def service_health(service_id: str) -> ResponseReturnValue:
    for service in SERVICES:
        if service["id"] == service_id:
            return service["status"] if IS_NAIVE else "", CODES[service["status"]]
    return jsonify(message="Service not found"), 404


if __name__ == "__main__":
    app.run(port=int(sys.argv[1]))
