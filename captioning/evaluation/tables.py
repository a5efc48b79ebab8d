"""Tables as Markdown and as plain text."""

from collections.abc import Sequence


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as plain text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells, the first of which is the header, with aligned columns."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"| {line} |" for line in lines)
