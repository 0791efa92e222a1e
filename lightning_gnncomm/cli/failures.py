"""Telling a user's mistake from a bug, so that only a bug shows a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer import connectors

__all__ = ["is_user_error", "short_errors"]

# Where arguments are checked: in this package, and where the Trainer reads its own.
_CHECKED_IN = (Path(__file__).resolve().parents[1], Path(connectors.__path__[0]).resolve())
_DEBUG = "GNNCOMM_DEBUG"


def is_user_error(error: BaseException) -> bool:
    """Return whether the person at the command line can mend this, so that its message says all there is to say.

    That is: a missing file, a setting that Lightning refuses, or an error of a common type that this package or
    the Trainer's reading of its arguments raised. The same types from deeper down are bugs and keep their traceback.
    """
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError | PermissionError):
        return True
    if isinstance(error, MisconfigurationException):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    raised_in = Path(frames[-1].filename).resolve() if frames else Path()
    return any(raised_in.is_relative_to(folder) for folder in _CHECKED_IN) and isinstance(
        error, ValueError | TypeError | ImportError | RuntimeError | OSError
    )


@contextmanager
def short_errors(program: str) -> Iterator[None]:
    """End the program with status 2 and one message on a user's mistake, and with status 130 on Ctrl-C.

    Raises:
        SystemExit: Instead of those errors. Any other error passes, and all of them do if ``GNNCOMM_DEBUG=1`` is set.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get(_DEBUG) or not is_user_error(error):
            raise
        rank = os.environ.get("LOCAL_RANK")
        where = program if rank is None else f"{program} (rank {rank})"
        print(f"{where}: error: {error}\n(Set {_DEBUG}=1 to see where it was raised.)", file=sys.stderr, flush=True)
        sys.exit(2)
