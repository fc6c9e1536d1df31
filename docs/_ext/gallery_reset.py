"""Between the examples of the gallery, which run in one process, torch gets back what it starts with."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["reset_torch"]

_DTYPE, _THREADS = torch.get_default_dtype(), torch.get_num_threads()


def reset_torch(gallery_conf: dict[str, Any], name: str) -> None:
    """Set the default type, the threads and the seed; sphinx-gallery calls it around every example."""
    torch.set_default_dtype(_DTYPE)
    torch.set_num_threads(_THREADS)
    torch.manual_seed(0)
