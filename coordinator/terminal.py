"""What the command line prints to: text and tables that no width cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, final

from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

UNLIMITED_COLUMNS: Final = 10_000  # wider than any line: a file or a pipe has no edge to wrap at
BORDER_COLUMNS: Final = 3  # a line and a blank on either side of each column's text
FOLD_COLUMNS_MIN: Final = 16  # narrower than this a folded column is harder to read than a record


@final
class Terminal(Console):
    """A console as wide as the terminal; what goes to a file or a pipe is neither cut nor wrapped."""

    @property
    def size(self) -> ConsoleDimensions:
        found = super().size
        return found if self.is_terminal else ConsoleDimensions(UNLIMITED_COLUMNS, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


def show_rows(
    to: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    folds: Collection[str] = (),
    right: Collection[str] = (),
    title: str | None = None,
    footer: Sequence[str] | None = None,
) -> None:
    """Print rows as a table, or, where the terminal is too narrow for it, each row as a record.

    `folds` names the columns whose text may go on in the next line, `right` those set to the right.
    Nothing is cut in either shape. Each row, and the footer, has one text for each column.
    """
    body = [list(row) for row in rows]
    table = _table(columns, body, folds=folds, right=right, title=title, footer=footer)
    least = sum((column.min_width or 0) + BORDER_COLUMNS for column in table.columns) + 1
    if least <= to.width:
        to.print(table)
        return
    if title is not None:
        to.print(Text(title, style="italic"))
    for row in [*body, *([list(footer)] if footer is not None else [])]:
        _show_record(to, columns, row)


def _table(
    columns: Sequence[str],
    body: Sequence[Sequence[str]],
    *,
    folds: Collection[str],
    right: Collection[str],
    title: str | None,
    footer: Sequence[str] | None,
) -> Table:
    table = Table(title=title, show_footer=footer is not None)
    for number, name in enumerate(columns):
        texts = [name, *(row[number] for row in body), *([footer[number]] if footer is not None else [])]
        longest = max(Text(text).cell_len for text in texts)
        table.add_column(
            Text(name),
            Text(footer[number]) if footer is not None else "",
            justify="right" if name in right else "left",
            no_wrap=name not in folds,
            overflow="fold",
            min_width=min(longest, FOLD_COLUMNS_MIN) if name in folds else longest,
        )
    for row in body:
        table.add_row(*(Text(text) for text in row))
    return table


def _show_record(to: Console, columns: Sequence[str], row: Sequence[str]) -> None:
    """The first column's text alone, then the others with their names; whole words where it can."""
    to.print(Text(row[0] or "-", style="bold"), soft_wrap=True)
    named = [
        f"{name} {text}" if name else text for name, text in zip(columns[1:], row[1:], strict=True) if text
    ]
    line = ""
    for part in named:
        if line and len(line) + 3 + len(part) > to.width:
            to.print(Text(line), soft_wrap=True)
            line = ""
        line = f"{line}   {part}" if line else f"  {part}"
    if line:
        to.print(Text(line), soft_wrap=True)
