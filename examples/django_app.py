# A Django project in one file that serves its node, under WSGI and under ASGI.
#
#     pip install . django gunicorn uvicorn
#     gunicorn --chdir examples --preload --workers 2 django_app:wsgi_application
#     uvicorn --app-dir examples django_app:asgi_application
#     curl -i localhost:8000/svc/node/health

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path

from svcnode import Node, asgi, wsgi

LEDGER = Path(os.environ.get("LEDGER", "ledger.db")).absolute()

settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": f"{LEDGER.as_uri()}?mode=rw",  # do not create a missing ledger
            "OPTIONS": {"uri": True},
        }
    },
    ROOT_URLCONF=__name__,
    SECRET_KEY="example",
)

with closing(sqlite3.connect(LEDGER)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS entries (amount INTEGER)")


def entry_count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM entries")
        return int(cursor.fetchone()[0])


def entries(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"entries": entry_count()})


urlpatterns = [path("entries", entries)]

node = Node("validator-7", version="v1.4.2")


@node.check("ledger/main", name="Ledger", description="SQLite file", impact="critical", interval="500ms", fall=2)
def ledger_can_be_read() -> None:
    # Every check runs in a new thread, and Django opens a connection per thread: close it.
    with closing(connection):
        entry_count()


# The node handles paths under /svc, Django all others.
wsgi_application = wsgi(node, fallback=get_wsgi_application())
asgi_application = asgi(node, fallback=get_asgi_application())
