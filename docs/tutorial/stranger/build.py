#!/usr/bin/env python3
"""Build a repository that has never heard of outerloop: a small package with a benchmark of its own, no contract.

    python3 docs/tutorial/stranger/build.py DESTINATION

The branch `main` is `base/`; the branch `optimal-fit` is a candidate. The work is done by the target's builder.
"""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILDER = runpy.run_path(str(HERE.parent / "target" / "build.py"))


def build(destination: Path | str) -> dict[str, str]:
    """Create the repository in `destination` and return {branch: commit id}; errors as in the target's builder."""
    commits: dict[str, str] = BUILDER["build"](destination, HERE)
    return commits


if __name__ == "__main__":
    sys.exit(BUILDER["main"]("Build a repository without a contract.", HERE))
