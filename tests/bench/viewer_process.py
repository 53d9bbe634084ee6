"""The view in a process of its own, as `outerloop view` makes it.

`python -m tests.bench.viewer_process URL OWNER STATE` prints its port once it listens, and serves until SIGTERM.

Covered: what bench_viewer.py asks first after a start. Not covered: the command line's own checks before it serves.
"""

from __future__ import annotations

import sys
from pathlib import Path

from outerloop.slots import StateRoot
from outerloop.viewer.app import record_app
from outerloop.viewer.serve import bind, serve
from outerloop.viewer.source import Source


def main(url: str, owner: str, state: str) -> None:
    source = Source(url=lambda: url, owner=owner, root=StateRoot(Path(state)), cadence_seconds=300.0)
    address = bind("127.0.0.1", 0)
    serve(record_app(source), address, ready=lambda _url: print(address.port, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
