"""The base of every error that a caller may want to catch, and a list of names short enough to read."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 20  # names of a list that are written out


class BlockcError(Exception):
    """The base of all errors of blockc. str() says what is wrong and where, in whole lines."""


class UsageError(BlockcError, ValueError):
    """A request that cannot be met, whatever the files hold: an unknown name, a number out of its range.

    `option` is the argument at fault, which the message begins with; on the command line it is an option.
    """

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(f"{option} {message}" if option else message)
        self.option, self.message = option, message

    @property
    def as_typed(self) -> str:
        """The message with the option as it is typed on the command line: --top-k for top_k."""
        return f"--{self.option.replace('_', '-')} {self.message}" if self.option else self.message


def shorten(lines: Sequence[str], shown: int = SHOWN) -> list[str]:
    """The first lines, and one that counts the rest, so that no message grows with a checkpoint."""
    left = len(lines) - shown
    return [*lines] if left <= 0 else [*lines[:shown], f"and {left:,} more"]


class CheckpointError(BlockcError):
    """Weights that cannot be used: a broken file, or tensors that do not fit the rules."""


def escape(name: object) -> str:
    """A text from a file as ASCII, with escapes for control characters; at most 200 characters."""
    return ascii(str(name))[1:-1][:200]
