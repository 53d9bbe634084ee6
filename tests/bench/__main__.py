"""`python -m tests.bench [NAME …]`: run the benchmarks, each of which prints ratios measured in one run."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import tests.bench as benches


def main(names: list[str]) -> int:
    """Run the named benchmarks (`bench_` may be left out), or all of them."""
    there = [module.name for module in pkgutil.iter_modules(benches.__path__) if module.name.startswith("bench_")]
    wanted = [name if name.startswith("bench_") else f"bench_{name}" for name in names] or there
    unknown = [name for name in wanted if name not in there]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(there)}", file=sys.stderr)
        return 2
    for name in wanted:
        print(f"== {name}", flush=True)
        importlib.import_module(f"tests.bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
