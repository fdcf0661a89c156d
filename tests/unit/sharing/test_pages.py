from __future__ import annotations

from svcnode.sharing.pages import FIRST_PAGE_KEYS, GROWTH, MAX_PAGE_BYTES, PAGE_BYTES, PAGE_KEYS, PageSize

LARGE_BYTES = 1_900_000


def read(size: PageSize, values: list[int]) -> list[int]:
    """Read values of these sizes, as a client does; returns the number of keys of each page that was asked for."""
    asked, start = [], 0
    while start < len(values):
        page = values[start : start + size.keys]
        asked.append(size.keys)
        if size.keys > 1 and sum(page) > MAX_PAGE_BYTES:
            size.refuse()
            continue
        size.accept(len(page), sum(page))
        start += len(page)
    return asked


def test_the_first_pages_are_small_and_later_ranges_begin_with_the_largest() -> None:
    size = PageSize()
    values = [200] * 2000
    assert read(size, values) == [FIRST_PAGE_KEYS, GROWTH * FIRST_PAGE_KEYS, *[PAGE_KEYS] * 4]
    assert read(size.next_range(), values) == [PAGE_KEYS] * 4


def test_large_values_are_read_one_by_one_and_small_ones_around_them_together() -> None:
    values = [*[200] * 100, *[LARGE_BYTES] * 60, *[200] * 100]
    size = PageSize()
    for _ in range(3):
        asked = read(size, values)
        assert len(asked) <= 60 + 25
        assert max(asked) <= GROWTH * FIRST_PAGE_KEYS
        size = size.next_range()
        assert size.keys == FIRST_PAGE_KEYS
    assert read(size, [200] * 100)
    assert size.next_range().keys == PAGE_KEYS, "the large values are gone"


def test_a_page_has_about_the_same_number_of_bytes_whatever_the_values() -> None:
    size = PageSize(PAGE_KEYS, PAGE_KEYS)
    size.accept(PAGE_KEYS, PAGE_KEYS * 10_000)
    assert size.keys == PAGE_BYTES // 10_000


def test_an_empty_range_is_no_reason_for_small_pages() -> None:
    size = PageSize()
    size.accept(0, 90)
    assert size.next_range().keys == PAGE_KEYS
