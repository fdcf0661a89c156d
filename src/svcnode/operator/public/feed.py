"""The outages of the public view as an Atom feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.core.units import iso_time, utc_text
from svcnode.operator.markup import escape_text
from svcnode.operator.public.statuspage import MAX_INCIDENTS, outage_text, outage_title, outage_uuid, page_uuid

if TYPE_CHECKING:
    from svcnode.operator.public.outages import Outage
    from svcnode.operator.public.view import PublicView

FEED = "history.atom"


def render(view: PublicView) -> bytes:
    entries = "".join(_entry(view, outage) for outage in view.outages[:MAX_INCIDENTS])
    title, base = escape_text(view.title), _base(view)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="en">\n'
        f"<id>urn:uuid:{page_uuid(view)}</id>\n<title>{title}: outages</title>\n"
        f"<updated>{iso_time(view.updated_s)}</updated>\n<author><name>{title}</name></author>\n"
        f'<link rel="self" type="application/atom+xml" href="{base}{FEED}"/>\n'
        f'<link rel="alternate" type="text/html" href="{base}"/>\n{entries}</feed>\n'
    ).encode()


def _entry(view: PublicView, outage: Outage) -> str:
    uuid, end_s = outage_uuid(outage), outage.end_s
    times = f"From {utc_text(outage.begin_s)}" + ("" if end_s is None else f" to {utc_text(end_s)}")
    return (
        f"<entry><id>urn:uuid:{uuid}</id><title>{escape_text(outage_title(view, outage))}</title>"
        f"<published>{iso_time(outage.begin_s)}</published>"
        f"<updated>{iso_time(outage.begin_s if end_s is None else end_s)}</updated>"
        f'<link rel="alternate" type="text/html" href="{_base(view)}#{uuid.hex[:12]}"/>'
        f"<content>{escape_text(outage_text(view, outage))} {times}.</content></entry>\n"
    )


def _base(view: PublicView) -> str:
    return escape_text(f"{view.url}/" if view.url else "./")
