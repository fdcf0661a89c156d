"""A node on FastAPI. With the argument "naive" it reports the version error in the form of FastAPI."""

import sys

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

SERVICES = [
    {"id": "db", "name": "Database", "description": "Holds the ledger", "status": "Up"},
    {"id": "indexer", "name": "Indexer", "description": "Follows the chain", "status": "Initializing"},
    {"id": "storage", "name": "Storage", "description": "Keeps the blobs", "status": "Down"},
]
CODES = {"Up": 200, "Initializing": 206, "Down": 503}


def require_supported_version(version: str | None = None) -> None:
    if version not in (None, "v0.0.1", "0.0.1"):
        raise HTTPException(404, "API version not found")


app = FastAPI(dependencies=[Depends(require_supported_version)])


if "naive" not in sys.argv:

    @app.exception_handler(HTTPException)
    def error_body(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"message": error.detail}, error.status_code)


@app.get("/svc/node")
def identity() -> dict[str, str]:
    return {"node_name": "fastapi", "spec_version": "v0.0.1", "node_version": "v1.0.0"}


@app.get("/svc/node/health")
def health() -> Response:
    return Response(status_code=206)


@app.get("/svc/node/services")
def services() -> dict[str, list[dict[str, str]]]:
    return {"services": SERVICES}


@app.get("/svc/node/services/{service_id}/health")
def service_health(service_id: str) -> Response:
    for service in SERVICES:
        if service["id"] == service_id:
            return Response(status_code=CODES[service["status"]])
    raise HTTPException(404, "Service not found")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
