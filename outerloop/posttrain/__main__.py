"""`python -m outerloop.posttrain CONFIG.toml --out DIR`: run a composed configuration in one place.

Exit codes: 0 done, 2 a configuration, a row or a source that can't be used, 3 refused (contamination, too many lost
trials), 69 infrastructure (the vLLM server did not start, or died), 75 stopped by a signal. After 69 and 75 the same
command continues.
"""

from __future__ import annotations

import argparse
import os
import sys
from fractions import Fraction
from pathlib import Path

STAGES = ("data", "sft", "dpo", "grpo", "evaluate")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outerloop.posttrain", description="Train and evaluate one composed configuration."
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; an interrupted run continues there")
    parser.add_argument("--seed", type=int, default=0, help="seed of this training (default 0)")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this stage; repeatable")
    parser.add_argument("--baseline", action="store_true", help="evaluate the untrained model too")
    parser.add_argument("--hub", type=Path, help="folder of pinned downloads")
    parser.add_argument(
        "--vllm",
        type=Path,
        metavar="PYTHON",
        help="Python of the environment that has vLLM (default: $OUTERLOOP_VLLM_PYTHON, else the one that runs)",
    )
    parser.add_argument(
        "--inspect",
        type=Path,
        metavar="PYTHON",
        help="the same for inspect-ai (default: $OUTERLOOP_INSPECT_PYTHON, else the one that runs)",
    )
    parser.add_argument("--sealed", type=Path, help="root of the sealed rows, mode 700 (default: OUT/sealed)")
    parser.add_argument(
        "--contamination-limit", type=Fraction, help="largest fraction of a suite's tasks that the data may contain"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    given = _parser().parse_args(argv)
    from outerloop.posttrain.offline import offline

    offline()
    for name in ("vllm", "inspect"):
        if getattr(given, name) is not None:
            os.environ[f"OUTERLOOP_{name.upper()}_PYTHON"] = str(getattr(given, name).absolute())
    from outerloop.posttrain.config import ConfigError
    from outerloop.posttrain.data import DataError
    from outerloop.posttrain.evaluate import SealError
    from outerloop.posttrain.outcomes import RefusedEvaluationError
    from outerloop.posttrain.pipeline import ContaminatedError, Place, run_pipeline
    from outerloop.posttrain.ranks import RanksError
    from outerloop.posttrain.scorers import ScorerError
    from outerloop.posttrain.serve import UNAVAILABLE, ServerError
    from outerloop.posttrain.sources import SourceError
    from outerloop.posttrain.training import STOPPED, StageError, Stopped

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        run_pipeline(
            given.config,
            Place(given.out, given.sealed or given.out / "sealed", given.hub),
            seed=given.seed,
            stages=None if given.stage is None else tuple(given.stage),
            baseline=given.baseline,
            contamination_limit=given.contamination_limit,
            say=say,
        )
    except (ConfigError, DataError, SourceError, StageError, ScorerError, SealError) as error:
        print(error, file=sys.stderr)
        return 2
    except (ContaminatedError, RefusedEvaluationError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 3
    except ServerError as error:
        print(f"infrastructure: {error}; the same command continues", file=sys.stderr)
        return UNAVAILABLE
    except RanksError as error:
        print(f"{'infrastructure: ' if error.code == UNAVAILABLE else ''}{error}", file=sys.stderr)
        return error.code
    except Stopped as error:
        print(f"stopped: {error}; the same command continues", file=sys.stderr)
        return STOPPED
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
