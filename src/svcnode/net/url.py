"""Moved to `svcnode.core.url`."""

from svcnode.core.url import Url as Url
from svcnode.core.url import UrlError as UrlError
from svcnode.core.url import is_valid_hostname as is_valid_hostname
