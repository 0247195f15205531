"""Fits text to the width of the terminal, breaking no word; output that is no terminal keeps its lines."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

_LEAST = 40


def width(stream: TextIO | None = None) -> int | None:
    """Returns the terminal's columns; None where the stream, or standard output, is no terminal."""
    stream = sys.stdout if stream is None else stream
    return max(shutil.get_terminal_size().columns, _LEAST) if stream.isatty() else None


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints sentences, broken at words where the terminal is narrower.

    A line that begins with two spaces is a command, which is to be copied: it stays whole.
    """
    columns = width(stream)
    lines = [line if line.startswith("  ") else hang(line, columns, 2) for line in text.split("\n")]
    print("\n".join(lines), file=stream, flush=True)


def hang(text: str, columns: int | None, indent: int) -> str:
    """Returns a line broken at spaces, its continuation indented.

    >>> print(hang("name  a meaning of some words", 16, 6))
    name  a meaning
          of some
          words
    """
    if columns is None or len(text) <= columns:
        return text
    return textwrap.fill(
        text, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    )  # fmt: skip


def rewrap(text: str, columns: int | None) -> str:
    r"""Returns paragraphs and lists broken anew for so many columns; text that fits stays as it is.

    >>> print(rewrap("One paragraph of\ntwo lines that are long.\n\n  * a point that\n    goes on", 20))
    One paragraph of two
    lines that are long.
    <BLANKLINE>
      * a point that
        goes on
    """
    if columns is None or all(len(line) <= columns for line in text.splitlines()):
        return text
    blocks: list[str] = []
    indents: list[int] = []
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        bullet = re.match(r" *(\* |- |\d+\. )", line)
        goes_on = blocks and blocks[-1].strip() and line.strip() and not bullet and depth == indents[-1]
        if goes_on:
            blocks[-1] += f" {line.strip()}"
        else:
            blocks.append(line)
            indents.append(bullet.end() if bullet else depth)
    return "\n".join(hang(block, columns, indent) for block, indent in zip(blocks, indents, strict=True))


def command_line(*words: object, imports: Sequence[str] | None = None) -> str:
    """Returns a command of agentkit's to type into a shell, whatever is in its words, with its packages to import.

    >>> command_line("plot", "my runs/a")
    "agentkit plot 'my runs/a'"
    """
    named = [word for package in imports or () for word in ("--import", package)]
    return shlex.join(["agentkit", *map(str, words), *named])
