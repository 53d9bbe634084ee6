"""Which files a page may read: regular ones that really lie below the folder that is shown.

Covered: links that lead out of the folder, pipes and devices, which would hang a page. Not covered: reading.
"""

from __future__ import annotations

import stat
from pathlib import Path

__all__ = ["readable"]


def readable(path: Path, root: Path) -> bool:
    """Whether `path` is a regular file below `root` after all links are followed. Raises nothing."""
    try:
        real = path.resolve(strict=True)
        return real.is_relative_to(root.resolve(strict=True)) and stat.S_ISREG(real.stat().st_mode)
    except (OSError, RuntimeError, ValueError):
        return False
