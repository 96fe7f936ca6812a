"""Standard output and standard error as they come: closed, in any encoding, or with a reader who has gone."""

from __future__ import annotations

import codecs
import errno
import io
import os
import shutil
import sys
import time
from typing import TextIO

from blockc.basics.errors import listed

LONGEST = 2000  # characters of a line of a message
MOST = 60  # lines of a message
ERRORS = "blockc.plain"  # how a stream writes what its encoding has no character for
_GONE = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)  # what a write gives without a reader
NAMES = {1: "standard output", 2: "standard error"}
_EVERY = 0.1  # seconds between two states of the progress line

# What drawings are made of, in ASCII.
ASCII = str.maketrans("│─├┤┐┌└┘┬┴┼→←↓×", "|-+++++++++><vx")


# What is said


def plain_line(text: str) -> str:
    """A name on one line: no character that a terminal would act on, hide or reorder by."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_lines(text: str) -> str:
    """A message whose lines are lines; of all else, no control character reaches the terminal."""
    cut = (line if len(line) <= LONGEST else line[: LONGEST - 3] + "..." for line in text.split("\n"))
    return "\n".join(listed([plain_line(line) for line in cut], MOST))


def say(message: str) -> None:
    """To standard error, as blockc."""
    print(f"blockc: {clean_lines(message)}", file=sys.stderr, flush=True)


def write_text(text: str) -> None:
    """What may become a file, to standard output: in UTF-8 whatever the locale, but on a terminal."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None or sys.stdout.isatty():
        sys.stdout.write(text)
        return
    try:
        buffer.write(text.encode("utf-8", "backslashreplace"))
        buffer.flush()
    except OSError as error:
        if not isinstance(sys.stdout, _OutputStream):
            raise
        sys.stdout.handle_error(error)


def adapt_drawing(text: str) -> str:
    """A drawing, in ASCII where the terminal is a dumb one. What an encoding lacks, `prepare` sees to."""
    return text.translate(ASCII) if is_dumb() else text


def is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


# The streams


class _OutputStream(io.TextIOWrapper):
    """A text stream whose reader may go. What is still said then goes nowhere, and the command to its verdict.

    Any other fault names the stream as a fault of a file names the file.

    Text and bytes are written by Python's own streams alone: an interrupt between a write and what is remembered of it
    would have the same text written twice.
    """

    gone = False

    def write(self, s: str, /) -> int:
        try:
            return super().write(s)
        except OSError as error:
            self.handle_error(error)
            return len(s)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.handle_error(error)

    def handle_error(self, error: OSError) -> None:
        """Raises the error with the stream's name where it is not that nobody reads."""
        if error.errno not in _GONE:
            raise OSError(error.errno, error.strerror, NAMES[self.fileno()]) from error
        self.drop()

    def drop(self) -> None:
        """From here on nothing reaches the descriptor, what is still in the buffer included."""
        if not self.gone:
            self.gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def prepare() -> None:
    """The streams of this process, so that nothing that is printed fails for what they are."""
    for descriptor in range(3):  # one that is closed would be given to the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error(ERRORS, _escape_missing)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout, sys.stderr = _prepare_stream(sys.stdout, 1), _prepare_stream(sys.stderr, 2)


def _prepare_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # None where it was closed
        return open(os.devnull, "w", encoding="utf-8") if stream is None else stream
    if stream.isatty():
        stream.reconfigure(errors=ERRORS)
        return stream
    stream.flush()
    return _OutputStream(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        errors=ERRORS,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _escape_missing(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks: those of drawings in ASCII, all others as their escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end].translate(ASCII)
    return missing.encode("ascii", "backslashreplace").decode(), error.end


def reader_gone() -> bool:
    """Whether nobody reads standard output any more, so that what only fills it may end."""
    return isinstance(sys.stdout, _OutputStream) and sys.stdout.gone


def flush() -> None:
    """Raises OSError, as for a disk that is full; what is left unsaid is then dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        if isinstance(sys.stdout, _OutputStream):
            sys.stdout.drop()
        raise


# How far a command is


class Progress:
    """One line on a terminal's standard error that says how far a command is, and goes with it. Else silent."""

    def __init__(self, quiet: bool = False) -> None:
        self.heard = not quiet and not is_dumb() and sys.stderr.isatty()
        self.width = 0
        self.last = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        self._write("")

    def __call__(self, what: str, done: int, whole: int) -> None:
        now = time.monotonic()
        if self.heard and now - self.last >= _EVERY:
            self.last = now
            self._write(f"blockc: {plain_line(what)}: {done * 100 // max(whole, 1)} %")

    def _write(self, line: str) -> None:
        """Over the line before it."""
        line = line[: shutil.get_terminal_size().columns - 1]
        if self.heard and (line or self.width):
            sys.stderr.write("\r" + line.ljust(self.width) + ("" if line else "\r"))
            sys.stderr.flush()
            self.width = len(line)
