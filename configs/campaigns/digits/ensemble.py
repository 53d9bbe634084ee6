"""Score an ensemble on the items of one role: the mean margin of its members decides."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from claims import items_of, margins, read_config
from scoring import band_of, report, sha256, write_scores, write_whole


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--manifest", type=Path, required=True)
    options.add_argument("--split", type=Path, required=True)
    options.add_argument("--role", required=True)
    options.add_argument("--output", type=Path, required=True, help="the report")
    options.add_argument("--scores-output", type=Path, required=True)
    options.add_argument("--band-scores", default="")
    given = options.parse_args()
    members = json.loads(given.manifest.read_text(encoding="utf-8"))["members"]
    items = items_of(given.split, given.role)
    right = np.asarray(items.targets)
    found = np.mean([margins(read_config(Path(m["config"])), Path(m["checkpoint"]), items) for m in members], axis=0)
    # An ensemble is no file; the digest of its members' digests names it.
    digest = hashlib.sha256("".join(sha256(Path(m["checkpoint"])) for m in members).encode()).hexdigest()
    write_scores(given.scores_output, items.numbers, found, right)
    made = report(found, right, digest=digest, band=band_of(given.band_scores))
    write_whole(given.output, json.dumps(made) + "\n")
    print(f"{len(members)} members: {made['fail_to_pass_count']} of {made['fail_count']} fail -> pass")


if __name__ == "__main__":
    main()
