"""Standard output and standard error in any state: closed, in any encoding, or a pipe that nobody reads any more."""

from __future__ import annotations

import codecs
import errno
import io
import os
import shutil
import sys
import time
from typing import TextIO

from blockc.basics.errors import shorten

LONGEST = 2000  # characters of a line of a message
MOST = 60  # lines of a message
ERRORS = "blockc.plain"  # the error handler for characters that an encoding lacks
_GONE = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)  # errors of writing to a closed pipe
NAMES = {1: "standard output", 2: "standard error"}
_EVERY = 0.1  # seconds between updates of the progress line

# The characters of drawings, in ASCII.
ASCII = str.maketrans("│─├┤┐┌└┘┬┴┼→←↓×", "|-+++++++++><vx")


# Messages


def plain_line(text: str) -> str:
    """A text on one line, with escapes for characters that a terminal acts on, hides or reorders by."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_lines(text: str) -> str:
    """A message with its line breaks; other control characters are escaped, and long texts are cut."""
    cut = (line if len(line) <= LONGEST else line[: LONGEST - 3] + "..." for line in text.split("\n"))
    return "\n".join(shorten([plain_line(line) for line in cut], MOST))


def say(message: str) -> None:
    """Prints a message to standard error, after "blockc: "."""
    print(f"blockc: {clean_lines(message)}", file=sys.stderr, flush=True)


def write_text(text: str) -> None:
    """Writes a text that may become a file to standard output, in UTF-8 unless it is a terminal."""
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
    """A drawing, in ASCII on a dumb terminal. `prepare` handles characters that an encoding lacks."""
    return text.translate(ASCII) if is_dumb() else text


def is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


# The streams


class _OutputStream(io.TextIOWrapper):
    """A text stream that may be a closed pipe: then output is discarded, and the command goes on to its exit code.

    Any other error names the stream, as an error of a file names the file.

    Only Python's own streams write text and bytes: with a buffer of our own, an interrupt could make the same text
    appear twice.
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
        """Discards further output if the pipe is closed; else raises the error with the stream's name."""
        if error.errno not in _GONE:
            raise OSError(error.errno, error.strerror, NAMES[self.fileno()]) from error
        self.drop()

    def drop(self) -> None:
        """Sends all further output, also what is in the buffer, to the null device."""
        if not self.gone:
            self.gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def prepare() -> None:
    """Replaces the standard streams, so that printing never fails because of a stream's state or encoding."""
    for descriptor in range(3):  # else the next file opened would get a closed descriptor
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
    """Replaces characters that an encoding lacks: those of drawings by ASCII, others by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end].translate(ASCII)
    return missing.encode("ascii", "backslashreplace").decode(), error.end


def reader_gone() -> bool:
    """Whether standard output is a closed pipe, so that a command that only prints may end."""
    return isinstance(sys.stdout, _OutputStream) and sys.stdout.gone


def flush() -> None:
    """Flushes standard output. On an OSError, such as a full disk, the rest is discarded and the error raised."""
    try:
        sys.stdout.flush()
    except OSError:
        if isinstance(sys.stdout, _OutputStream):
            sys.stdout.drop()
        raise


# How far a command is


class Progress:
    """A line on a terminal's standard error with a command's progress, cleared at the end; silent elsewhere."""

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
        """Writes a line over the last one."""
        line = line[: shutil.get_terminal_size().columns - 1]
        if self.heard and (line or self.width):
            sys.stderr.write("\r" + line.ljust(self.width) + ("" if line else "\r"))
            sys.stderr.flush()
            self.width = len(line)
