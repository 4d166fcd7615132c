"""Show long lists page by page: filtered by a text, sorted by a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
ROWS: Final = 50


class Column(NamedTuple):
    """A column by which a list may be sorted.

    key: returns the sort key of a row; None sorts last.
    largest: whether the largest come first.
    """

    title: str
    key: Callable[[Any], Any]
    largest: bool = False


class Listing(Generic[T]):
    """One page of a list.

    rows: the rows of the page.
    found: the number of rows that pass the filter.
    total: the number of all rows.
    page, pages: the number of the page, from 1, and of all pages.
    sort: the column's name.
    reverse: whether the order is the reverse of the column's usual order.
    """

    def __init__(
        self, items: Iterable[T], columns: Mapping[str, Column], name: Callable[[T], str], options: Mapping[str, str],
        sort: str = "",
    ) -> None:  # fmt: skip
        """options: the request's options `q`, `sort`, `reverse` and `page`; invalid values are ignored.

        sort: the default column of the sort; "" for the first one.
        """
        everything = list(items)
        self.total = len(everything)
        self.columns = columns
        self.text = options.get("q", "")[:200]
        wanted = self.text.casefold()
        found = [one for one in everything if wanted in name(one).casefold()] if wanted else everything
        wish = options.get("sort", "")
        self.sort = wish if wish in columns else sort or next(iter(columns))
        self.reverse = options.get("reverse", "") == "1"
        column = columns[self.sort]
        keyed = [(column.key(one), name(one), one) for one in found]
        unknown = sorted((one for one in keyed if one[0] is None), key=lambda one: one[1])
        sortable = sorted((one for one in keyed if one[0] is not None), key=lambda one: one[1])
        sortable.sort(key=lambda one: one[0], reverse=column.largest != self.reverse)
        self.found = len(found)
        self.pages = max((len(found) + ROWS - 1) // ROWS, 1)
        self.page = min(max(_integer(options.get("page", "")), 1), self.pages)
        start = (self.page - 1) * ROWS
        self.rows: list[T] = [one for _, _, one in (sortable + unknown)[start : start + ROWS]]


def _integer(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 1
