"""Train one candidate: a small torch model, saved every few epochs; the best on the validation items are offered.

A student learns from soft targets besides: margins that a teacher gave to the development items.
Exit code 3, and a file that says so, when no checkpoint tells right claims from wrong ones on the validation items.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claims import Items, built, items_of, margins, read_config
from scoring import error_counts, gate_auc, sha256, write_scores, write_whole
from torch import nn

NO_ELIGIBLE_EXIT_CODE = 3
NO_ELIGIBLE_MARKER = "no-eligible-checkpoint"


def soft_targets(path: Path, items: Items) -> torch.Tensor:
    """The teacher's probabilities of "right" for these items, in their order."""
    taught = json.loads(path.read_text(encoding="utf-8"))
    by_item = dict(zip(taught["items"], taught["margins"], strict=True))
    return torch.sigmoid(torch.tensor([by_item[int(number)] for number in items.numbers]))


def trained(config: Mapping[str, Any], items: Items, output: Path) -> list[str]:
    """Train, and write a checkpoint every `save_every` epochs. Returns the checkpoints' names."""
    torch.manual_seed(config["seed"])
    model = built(config)
    targets = items.targets
    if config.get("gate_soft_targets"):
        share = config["soft_share"]
        targets = share * soft_targets(Path(config["gate_soft_targets"]), items) + (1 - share) * targets
    optimizer = torch.optim.Adam(
        model.parameters(), lr=config["learning_rate"], weight_decay=config.get("weight_decay", 0.0)
    )
    names = []
    for epoch in range(1, config["epochs"] + 1):
        for batch in torch.randperm(len(targets)).split(config["batch"]):
            loss = nn.functional.binary_cross_entropy_with_logits(model(items.inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % config["save_every"] == 0:
            name = f"{config['model']}-{epoch:04d}"
            torch.save(model.state_dict(), output / name)
            names.append(name)
            print(f"epoch {epoch}: loss of the last batch {loss.item():.4f}", flush=True)
    return names


def undominated(points: Mapping[str, tuple[int, int]]) -> list[str]:
    """The names whose two counts no other name's beat: no higher in one, lower in the other. The first of equals."""
    kept = []
    for name, (a, b) in points.items():
        beaten = any(c <= a and d <= b and (c, d) != (a, b) for c, d in points.values())
        if not beaten and (a, b) not in [points[other] for other in kept]:
            kept.append(name)
    return kept


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--config", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True, help="folder of this run")
    given = options.parse_args()
    config = read_config(given.config)
    split = Path(config["split"])
    names = trained(config, items_of(split, "development"), given.output)
    validation = items_of(split, "validation")
    right = np.asarray(validation.targets)
    areas, errors = {}, {}
    for name in names:
        found = margins(config, given.output / name, validation)
        counts = error_counts(found, right)
        areas[name] = gate_auc(found, right)
        errors[name] = (counts["fail_to_pass_count"], counts["pass_count"] - counts["pass_correct_count"])
        epoch = name.rpartition("-")[2]
        write_scores(given.output / f"validation-epoch-{epoch}.scores.jsonl", validation.numbers, found, right)
        write_whole(
            given.output / f"validation-epoch-{epoch}.json", json.dumps({**counts, "gate_auc": areas[name]}) + "\n"
        )
    eligible = [name for name in names if areas[name] >= config["least_auc"]]
    if not eligible:
        why = f"the best validation gate AUC is {max(areas.values()):.3f}, below {config['least_auc']}"
        write_whole(given.output / NO_ELIGIBLE_MARKER, why + "\n")
        print(f"no eligible checkpoint: {why}", file=sys.stderr)
        return NO_ELIGIBLE_EXIT_CODE
    chosen = min(eligible, key=lambda name: (sum(errors[name]), -areas[name]))
    offered = undominated({name: errors[name] for name in eligible})
    write_whole(given.output / "pareto.json", json.dumps({"checkpoints": [{"checkpoint": n} for n in offered]}) + "\n")
    selection = {
        "checkpoint": chosen,
        "false_negatives": errors[chosen][0],
        # Runs on one split read the same items, so one job can score all of them for a teacher.
        "inputs_sha256": sha256(split / "roles.json"),
    }
    write_whole(given.output / "selection.json", json.dumps(selection) + "\n")
    print(f"selected {chosen}, offered {', '.join(offered)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
