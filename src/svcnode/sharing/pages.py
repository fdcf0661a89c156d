"""How many keys a page of a range has, so that it has about `PAGE_BYTES`.

A page is made by etcd as a whole, sent within the deadline of a call, and parsed at once on the event loop. Below the
prefix may be values of any program, each as large as etcd accepts, 1.5 MB by default. Sizes are known only afterwards,
so a page has at most four times as many keys as the one before.
"""

from __future__ import annotations

PAGE_KEYS = 500
FIRST_PAGE_KEYS = 32  # while nothing is known, and as long as there are large values
PAGE_BYTES = 1_000_000
MAX_PAGE_BYTES = 4 * PAGE_BYTES  # of a page with several keys; more is not received, and it is asked again with one key
MAX_RANGES_BYTES = 32 * PAGE_BYTES  # of several whole ranges, without the values of most
GROWTH = 4


class PageSize:
    """Of one range."""

    def __init__(self, first_keys: int = FIRST_PAGE_KEYS, max_keys: int = PAGE_KEYS) -> None:
        self.keys = first_keys
        self._max_keys = max_keys
        self._has_large_values = False

    def accept(self, key_count: int, byte_count: int) -> None:
        """A page was received."""
        fitting = PAGE_BYTES * max(key_count, 1) // max(byte_count, 1)
        if fitting < FIRST_PAGE_KEYS:
            self._note_large_values()
        self.keys = max(1, min(fitting, GROWTH * self.keys, self._max_keys))

    def refuse(self) -> None:
        """A page was too large, or did not come in time."""
        self._note_large_values()
        self.keys = 1

    def _note_large_values(self) -> None:
        self._has_large_values = True
        self._max_keys = FIRST_PAGE_KEYS

    def next_range(self) -> PageSize:
        """After a range without large values, the next one begins with the largest page."""
        keys = FIRST_PAGE_KEYS if self._has_large_values else PAGE_KEYS
        return PageSize(keys, keys)
