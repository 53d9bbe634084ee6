"""Pack a champion: its checkpoints and configs, what it scored, and a program that checks claims with it.

    python PACKAGE/check.py ITEMS.npz 17 18 19

The package is tried before it is handed over: it must give the very decisions that were counted in its report.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from scoring import write_whole

HERE = Path(__file__).resolve().parent


def members(given: argparse.Namespace) -> list[tuple[Path, Path]]:
    """(config, checkpoint) of the champion, or of each member of a champion that is an ensemble."""
    if given.manifest:
        listed = json.loads(Path(given.manifest).read_text(encoding="utf-8"))["members"]
        return [(Path(member["config"]), Path(member["checkpoint"])) for member in listed]
    return [(Path(given.config), Path(given.checkpoint))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--checkpoint", default="")
    options.add_argument("--config", default="")
    options.add_argument("--manifest", default="")
    options.add_argument("--report", type=Path, required=True)
    options.add_argument("--generation", required=True)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    scored = json.loads(given.report.read_text(encoding="utf-8"))
    packed, split = [], ""
    for number, (config, checkpoint) in enumerate(members(given), start=1):
        shutil.copy(config, given.output / f"member-{number:02d}.json")
        shutil.copy(checkpoint, given.output / f"member-{number:02d}.checkpoint")
        packed.append(f"member-{number:02d}")
        split = json.loads(config.read_text(encoding="utf-8"))["split"]
    for program in ("check.py", "claims.py"):
        shutil.copy(HERE / program, given.output / program)
    band = scored.get("reject_band")
    write_whole(given.output / "gate.json", json.dumps({"members": packed, "reject_band": band}, indent=2) + "\n")
    shutil.copy(given.report, given.output / "test-report.json")
    roles = json.loads((Path(split) / "roles.json").read_text(encoding="utf-8"))
    said = subprocess.run(
        [sys.executable, str(given.output / "check.py"), str(Path(split) / "items.npz"), *map(str, roles["test"])],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    passed = sum(line.split()[4] == "pass" for line in said.splitlines())
    block = scored["decided"] if band else scored
    expected = block["fail_to_pass_count"] + block["pass_correct_count"]
    if passed != expected:
        raise SystemExit(f"the package lets {passed} test items pass, its report says {expected}")
    print(f"generation {given.generation}: {len(packed)} checkpoints packed; {passed} test items pass, as reported")


if __name__ == "__main__":
    main()
