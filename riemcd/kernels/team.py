"""Who runs compiled kernels: torch's own team of OpenMP threads, so that both never compete.

A second pool of threads beside torch's would spin on the same cores, and those that come with numba
are either unsafe to use from several Python threads or kill a forked child. The team here is the one
that torch's own loops run on: as many threads as ``torch.get_num_threads()`` says, a team for each
Python thread that asks, and none in a forked child, where the threads of the parent do not exist.
Where torch's OpenMP library is not found, slices run on Python threads with the interpreter released.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import pkgutil
import struct
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["TASK", "available", "run", "size"]

#: (t, parts), twenty integers, three doubles, and where to count what has been taken. A task with parts = 0
#: is shared by a team.
TASK = struct.Struct("@22q3dq")
_LIBRARIES = ("libgomp*.so*", "libiomp5.so", "libomp.so")
_forked = False
_lock = threading.Lock()


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = True, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _openmp() -> Any:
    """Return the OpenMP library that torch has loaded, or None."""
    no_load = getattr(os, "RTLD_NOLOAD", None)
    if no_load is None:
        return None
    beside = Path(torch.__file__).parent / "lib"
    names = [str(path) for pattern in _LIBRARIES for path in sorted(beside.glob(pattern))]
    for name in (*names, "libgomp.so.1", "libiomp5.so", "libomp.so"):
        try:
            library = ctypes.CDLL(name, mode=ctypes.DEFAULT_MODE | no_load)
            parallel = library.GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
        parallel.restype = None
        return library
    return None


@cache
def available() -> bool:
    """Return whether numba is here; found out once, when the first kernel is wanted."""
    try:
        llvm: Any = importlib.import_module("llvmlite.binding")
        from .compiled import NUM_THREADS, THREAD_NUM
    except ImportError:
        return False
    library = _openmp()
    for name, function in ((THREAD_NUM, "omp_get_thread_num"), (NUM_THREADS, "omp_get_num_threads")):
        # Without a library tasks name their part themselves, and the functions are never called.
        symbol = ctypes.cast(getattr(library, function), ctypes.c_void_p).value if library else 1
        llvm.add_symbol(name, symbol)
    return True


def size() -> int:
    """Return how many threads run at the same time on a task that is large; one where that is not sure."""
    return 1 if _forked or _openmp() is None else torch.get_num_threads()


_kernels: dict[tuple[str, int], tuple[int, Callable[[bytes], None], Any]] = {}


@cache
def _sources() -> str:
    """Return a name for the sources of all kernels as they are now."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _load(name: str, size: int) -> tuple[int, Callable[[bytes], None], Any]:
    """Compile a kernel, or take it from numba's cache."""
    # Here, because they need numba.
    numba: Any = importlib.import_module("numba")
    names = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f".{one}", __package__) for one in names if one.startswith("compiled")]
    # Not all of them are run by a team.
    entries = {key: entry for one in modules for key, entry in getattr(one, "ENTRIES", {}).items()}

    with _lock:
        if (name, size) not in _kernels:
            signature, entry = numba.void(numba.int64), entries[name, size]
            # numba finds what it has cached by name, and looks whether one file is still the same; but what
            # an entry calls is in others.
            entry.__qualname__ = f"{entry.__name__}_{_sources()}"
            try:
                function = numba.cfunc(signature, cache=True)(entry)
            except RuntimeError:  # no directory to cache in
                function = numba.cfunc(signature)(entry)
            call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(function.address)
            _kernels[name, size] = (function.address, call, function)
    return _kernels[name, size]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="riemcd")


def run(name: str, size: int, numbers: tuple[int, ...], factors: tuple[float, ...], work: int) -> None:
    """Run a kernel on a task of ``work`` numbers of ``size`` bytes; small ones on this thread alone."""
    address, call, _ = _kernels.get((name, size)) or _load(name, size)
    threads = 1 if work < 32768 or _forked else torch.get_num_threads()
    taken = array("q", (0, 0, 0, 0))
    last = (*numbers, *factors, taken.buffer_info()[0])
    if threads == 1:
        call(TASK.pack(0, 1, *last))
        return
    library = _openmp()
    if library is not None:
        library.GOMP_parallel(address, TASK.pack(0, 0, *last), threads, 0)
        return
    tasks = [TASK.pack(t, threads, *last) for t in range(threads)]
    waiting = [_pool(threads).submit(call, task) for task in tasks[1:]]
    call(tasks[0])
    for one in waiting:
        one.result()
