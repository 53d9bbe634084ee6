"""A submitter's training, with accounts of its own: what its command reaches as the service, and who is told of it."""

from __future__ import annotations

import json
from pathlib import Path

from outerloop.cli.errors import ExitCode
from tests.service.accounts import needs_root, nightly
from tests.service.test_service import may
from tests.service.world import ServiceWorld

pytestmark = needs_root

# What a command of a submitter's own would try, running as the service's account.
CURIOUS = """\
echo "a training of mine"
for path in {paths}; do
  if ls "$path" >/dev/null 2>&1 || cat "$path" >/dev/null 2>&1; then echo "reached $path"; fi
done
echo mark > "$OUTERLOOP_OUTPUT_DIR/mark"
"""


def leave(world: ServiceWorld, clone: Path, script: str) -> str:
    plan = clone / "plan.json"
    plan.write_text(json.dumps({"family": "own_command", "command": ["sh", "-c", script]}))
    plan.chmod(0o644)
    done = world.ada.outerloop(
        "submit", "training", str(plan), "--name", "fit", "--minutes", "2", "--not-resumable", "--json", cwd=clone
    )
    return str(json.loads(done.stdout)["submission"])


@nightly
def test_a_training_runs_sealed_and_its_submitter_alone_is_told(service: ServiceWorld) -> None:
    world = service
    world.begin()
    clone = world.clone(world.ada, {"better": {"src/cost": "8\n"}})
    secrets = [
        world.state / "runs",
        world.state / "slots",
        world.svc.home / ".config/outerloop/config.toml",
        world.spool / "incoming",
        world.spool / "replies",
    ]
    assert all(path.exists() for path in secrets[2:])
    nonce = leave(world, clone, CURIOUS.format(paths=" ".join(str(path) for path in secrets)))
    world.until(lambda: world.seen(world.ada)["runs"] != [], "the training to be taken")
    [run] = [body["run"] for body in world.seen(world.ada)["runs"]]
    world.until(lambda: world.answered(run).get("state") == "ended", "the end of the training")
    told = json.loads(world.ada.outerloop("show", run, "--json").stdout)
    assert (told["kind"], told["verdict"], told["submitter"]) == ("training", "finished", world.ada.unix), told
    printed = world.ada.outerloop("logs", run).stdout
    assert "a training of mine" in printed and "reached" not in printed, printed
    screens = [world.ada.outerloop("status").stdout, world.ada.outerloop("show", run).stdout]
    assert all("finished" in screen for screen in screens), screens
    assert all(len(line) <= 80 for screen in screens for line in screen.splitlines()), screens
    # Its files stay with the service, and nobody else learns that it was.
    kept = list((world.state / "slots").glob("*/*/attempts/1/r0/out/mark"))
    assert len(kept) == 1
    assert may(world.ada, *kept) == [] and may(world.bob, *kept) == []
    assert world.seen(world.bob)["runs"] == []
    assert world.bob.outerloop("show", run, codes=None).returncode == ExitCode.NOT_FOUND
    assert not (world.spool / "incoming" / f"{nonce}.submission").exists()
    dry = world.ada.outerloop("submit", "training", str(clone / "plan.json"), "--dry-run", cwd=clone, codes=None)
    assert dry.returncode != 0 and "not for submitters" in dry.stderr
