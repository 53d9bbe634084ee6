"""Score the checkpoints of a jobs file on the items of one role: margins per item, then a report per checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from claims import items_of, margins, read_config
from scoring import band_of, report, sha256, write_scores, write_whole


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=Path, required=True)
    options.add_argument("--split", type=Path, required=True)
    options.add_argument("--role", required=True)
    given = options.parse_args()
    items = items_of(given.split, given.role)
    right = np.asarray(items.targets)
    for job in json.loads(given.jobs.read_text(encoding="utf-8")):
        checkpoint = Path(job["checkpoint"])
        found = margins(read_config(Path(job["config"])), checkpoint, items)
        write_scores(Path(job["scores_output"]), items.numbers, found, right)
        made = report(found, right, digest=sha256(checkpoint), band=band_of(job.get("band_scores", "")))
        # The report comes last: scores without one are those of a job that was killed.
        write_whole(Path(job["output"]), json.dumps(made) + "\n")
        print(f"{checkpoint.name}: {made['fail_to_pass_count']} of {made['fail_count']} fail -> pass")


if __name__ == "__main__":
    main()
