"""What the command line prints to: text and tables that no width cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, final

from rich.cells import cell_len
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
    last = [list(footer)] if footer is not None else []
    widths = _widths(columns, [*body, *last], folds, to.width)
    if widths is None:
        if title is not None:
            to.print(Text(title, style="italic"))
        for row in [*body, *last]:
            _show_record(to, columns, row)
        return
    table = Table(title=None if title is None else Text(title), show_footer=footer is not None)
    for number, name in enumerate(columns):
        table.add_column(
            Text(name),
            Text(footer[number]) if footer is not None else "",
            justify="right" if name in right else "left",
            overflow="fold",
            width=widths[number],
        )
    for row in body:
        table.add_row(*(Text(text) for text in row))
    to.print(table)


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], folds: Collection[str], width: int
) -> list[int] | None:
    """Columns' widths in characters: headings may break between words, and only `folds` elsewhere.

    Texts get room before headings, and what wants least more gets it first. None if the table is
    too wide even so.
    """
    least, texts = list[int](), list[int]()
    for number, name in enumerate(columns):
        text = max((cell_len(row[number]) for row in rows), default=0)
        word = max(map(cell_len, name.split()), default=0)
        least.append(max(word, min(text, FOLD_COLUMNS_MIN) if name in folds else text))
        texts.append(text)
    widths, spare = least.copy(), width - sum(least) - BORDER_COLUMNS * len(columns) - 1
    if spare < 0:
        return None
    for wanted in (texts, [cell_len(name) for name in columns]):
        for number in sorted(range(len(columns)), key=lambda n: wanted[n] - widths[n]):
            more = min(max(wanted[number] - widths[number], 0), spare)
            widths[number] += more
            spare -= more
    return widths


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
