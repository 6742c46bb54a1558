"""A table of finished cells, and its three renderings. What a cell says is decided elsewhere."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEFT, RIGHT, CENTER = "left", "right", "center"
_LONG = 30  # characters; such cells may break into lines
_RULES = {LEFT: ":---", RIGHT: "---:", CENTER: ":---:"}


@dataclass(frozen=True)
class Column:
    """A heading and where its cells are set."""

    name: str
    align: str = LEFT


@dataclass(frozen=True)
class Table:
    """`rows` hold one text per column. `emphasis` are (row, column) of cells to stress, the fastest of a row say."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    emphasis: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.id}: a row of {len(row)} cells under {len(self.columns)} columns")

    def markdown(self) -> str:
        """The table alone, as GitHub renders it."""
        lines = [_line(column.name for column in self.columns), _line(_RULES[column.align] for column in self.columns)]
        lines += [_line(row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The same cells as CSV."""
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(self.rows)
        return out.getvalue()

    def html(self) -> str:
        """`<figure>` with a caption, the table in a box that scrolls sideways, and the note."""
        head = "".join(f'<th scope="col" class="{c.align}">{html.escape(c.name)}</th>' for c in self.columns)
        body = "\n".join(self._html_row(index, row) for index, row in enumerate(self.rows))
        note = f'\n<p class="note">{prose(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table" id="table-{self.id}">\n<figcaption>{html.escape(self.title)}</figcaption>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.title, quote=True)}">\n'
            f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>{note}\n</figure>\n"
        )

    def _html_row(self, index: int, row: Sequence[str]) -> str:
        cells = []
        for place, (column, text) in enumerate(zip(self.columns, row, strict=True)):
            classes = column.align + (" best" if (index, place) in self.emphasis else "")
            classes += " long" if len(text) > _LONG else ""
            tag = 'th scope="row"' if place == 0 else "td"
            cells.append(f'<{tag} class="{classes}">{html.escape(text)}</{tag[:2]}>')
        return f"<tr>{''.join(cells)}</tr>"


def prose(text: str) -> str:
    """HTML of a sentence: `code` set as code, addresses as links."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"https://[^\s,;<]*[^\s,;<.]", lambda found: f'<a href="{found[0]}">{found[0]}</a>', text)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
