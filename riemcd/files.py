"""Files that are whole at any moment: written under another name, and renamed when they are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

__all__ = ["save_atomically", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], Any]) -> None:
    """Let ``write`` fill a file that gets its name only when it is complete and on the disk.

    Whoever opens ``path``, after a crash too, finds the previous contents or the new ones, never a part
    of them.

    Parameters
    ----------
    path : path
        Where the file will be; its folder must exist.
    write : callable
        Called once with a file that is open for bytes.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "result.json")
    ...     write_atomically(path, lambda file: file.write(b"[1, 2]"))
    ...     path.read_text(), os.listdir(folder)
    ('[1, 2]', ['result.json'])
    """
    target = Path(path)
    # In the same folder: only inside one file system is a renaming atomic.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _usual_mode(target))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def save_atomically(obj: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` to a file that is always a whole one, even if the process dies while writing.

    Parameters
    ----------
    obj : object
        What ``torch.save`` takes: for a run, a dict of the ``state_dict()`` of model and optimizer.
    path : path
        Where the file will be; its folder must exist.

    Examples
    --------
    >>> import os, tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_atomically({"step": 3}, os.path.join(folder, "run.pt"))
    ...     torch.load(os.path.join(folder, "run.pt"), weights_only=True)
    {'step': 3}
    """
    write_atomically(path, lambda file: torch.save(obj, file))


def _usual_mode(target: Path) -> int:
    """Return the permissions the file has, or would have had if it had been opened by its own name."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Put the renaming itself on the disk, where folders can be opened (not on Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
