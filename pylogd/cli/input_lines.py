"""Read lines of files, and tell which of them were written when a command ends in the middle of its input.

Strategy: lines are numbered from 1 over all files together. `Written` follows the deliveries of the records that were
made of them, in order. Records of several partitions are not written in the order of their lines, so the place to go on
is the first line that is not known to be written; some lines after it may be written too, and are counted.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final, cast

import click

from pylogd.cli.common import format_bytes
from pylogd.cli.record_input import BadInput
from pylogd.client import Delivery

_READ_BYTES: Final = 1 << 18
_LONGEST_LINE: Final = 64 * 1024 * 1024
_IDLE_SECONDS: Final = 0.1


class InputLines:
    """The lines of several files in sequence; `-` is standard input.

    skip: the number of lines to leave out at the beginning of the input.
    bytes: the number of bytes that were read, including the lines that were left out.
    """

    def __init__(self, files: Sequence[Path], skip: int = 0) -> None:
        self._files = files or [Path("-")]
        self._skip = self._left = skip
        self._begins: list[int] = []  # the number of lines before each opened file
        self.bytes = 0

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the lines that arrive together, without line ends. While none arrive, yield [] from time to time.

        Raises BadInput for a line that is too long, and OSError if a file can't be read; the number of yielded lines
        tells where. Raises ClickException if the input has fewer lines than `skip`.
        """
        number = 0
        for source in self._files:
            self._begins.append(number)
            with _open(source) as stream:
                for lines in _read_lines(stream):
                    number += len(lines)
                    self.bytes += sum(map(len, lines)) + len(lines)
                    left_out = min(self._left, len(lines))
                    self._left -= left_out
                    yield lines[left_out:] if left_out else lines
        if self._left:
            raise click.ClickException(
                f"the input ends after line {number}: there is nothing that --skip-lines {self._skip} goes on with"
            )

    def place(self, number: int) -> str:
        """Return the file, and the line's number in it, for a line's number in the whole input."""
        which = max(sum(begin < number for begin in self._begins) - 1, 0)
        begin = self._begins[which] if self._begins else 0
        source = self._files[which]
        return f"{'standard input' if str(source) == '-' else source}: line {number - begin}"


def _open(source: Path) -> AbstractContextManager[BinaryIO]:
    if str(source) == "-":
        return nullcontext(cast(BinaryIO, sys.stdin.buffer))
    return source.open("rb")


def _read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines that arrive together, and [] from time to time while none do, so that errors are noticed."""
    descriptor = stream.fileno()
    tail = b""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        while not waiting.poll(_IDLE_SECONDS * 1000):
            yield []
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            break
        lines = (tail + chunk).split(b"\n")
        tail = lines.pop()
        yield lines
        if len(tail) > _LONGEST_LINE:
            raise BadInput(f"a line has more than {format_bytes(_LONGEST_LINE)}")
    if tail:
        yield [tail]


class Written:
    """Keeps track of the lines of the input that were written."""

    def __init__(self, lines: InputLines, skipped: int, *, confirmed: bool = True) -> None:
        """Take the lines.

        skipped: the number of lines that were left out at the beginning.
        confirmed: whether brokers confirm records (acks).
        """
        self._lines = lines
        self._skipped = skipped
        self._done = "acknowledged" if confirmed else "sent"
        self._pending: deque[Delivery] = deque()
        self._before = skipped  # lines before the first that is pending

    def add(self, delivery: Delivery) -> None:
        """Keep track of the record of the next line."""
        self._pending.append(delivery)

    def settle(self) -> None:
        """Forget the first lines that are written. Call this now and then, to limit the memory."""
        pending = self._pending
        while pending and pending[0].done and pending[0].error is None:
            pending.popleft()
            self._before += 1

    def failure(self, error: Exception | None, text: Callable[[Exception], str]) -> str:
        """Return a message with the cause of the end and the line to continue at. Call this after the last result.

        error: the fault of the line after the last sent line, which can't be read or sent; None if only sent lines have
        failed.
        text: the function that returns the text of an error.
        """
        self.settle()
        causes, pending = [], self._pending
        if pending:
            failed = pending[0].error
            causes.append(f"{self._place(0)}: {'no answer' if failed is None else text(failed)}")
        if error is not None:
            causes.append(f"{self._place(len(pending))}: {text(error)}")
        correctable = isinstance(error, BadInput) and not pending
        return f"{'; '.join(causes)}. {_sentence(self._count(' before it'))}. {self._continuation(correctable)}"

    def interruption(self) -> str:
        """Return a message with the progress of an interrupted command; "" if it has sent nothing."""
        self.settle()
        if self._before == self._skipped and not self._pending:
            return ""
        return f"Interrupted: {self._count('')}. {self._continuation(False)}"

    def _place(self, behind: int) -> str:
        """Return the place of the line that is `behind` lines after the first pending one."""
        return self._lines.place(self._before + 1 + behind)

    def _count(self, which: str) -> str:
        """Return a message with the number of written lines.

        which: the words after the number that tell which lines are counted, such as " before it".
        """
        whole = self._before - self._skipped
        if not whole and not self._pending:
            return "nothing was written"
        be = "is" if whole in (0, 1) else "are"
        told = f"{f'{whole:,}' if whole else 'no'} line{'' if be == 'is' else 's'}{which} {be} {self._done}"
        later = sum(one.done and one.error is None for one in self._pending)
        unknown = sum(not one.done for one in self._pending)
        if later:
            told += f"; so {'is' if later == 1 else 'are'} {later:,} after it, and would be written twice"
        if unknown:
            told += f"; {unknown:,} without an answer may be written twice"
        return told

    def _continuation(self, correctable: bool) -> str:
        """Return a message that tells how to continue.

        correctable: whether the next line has to be corrected first.
        """
        go_on = f"go on with --skip-lines {self._before}" if self._before else "begin again"
        if correctable:
            return f"Correct it and {go_on}, or leave it out with --skip-lines {self._before + 1}"
        return _sentence(go_on)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
