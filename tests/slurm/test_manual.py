"""The manual's blocks that need a cluster, typed as the pages show them, on the development cluster. By night.

Covered: setting up on a site, a planned fine-tune whose GPUs are the development cluster's (Slurm counts four on a
node, there is no device, so the script computes on the CPU). Not covered: what only real GPUs show.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.documents import Shell
from tests.e2e.test_manual_nightly import PATIENCE_SECONDS, blocks_of, needs, prepared, typed, until
from tests.e2e.test_tutorial import TOP, environment
from tests.slurm.cluster import DevCluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes minutes: set OUTERLOOP_NIGHTLY"),
]


@pytest.fixture
def site(cluster: DevCluster) -> Iterator[tuple[Path, Shell]]:
    """The home of somebody on the cluster, not in /tmp (doctor refuses that), and a shell in it."""
    home = Path(tempfile.mkdtemp(prefix=".ol-doc-", dir=Path.home()))
    tools = {name: value for name, value in cluster.env.items() if name == "SLURM_CONF"}
    path = f"{Path(sys.executable).parent}:{cluster.bin}:/usr/local/bin:/usr/bin:/bin"
    try:
        with Shell(home, {**environment(home), **tools, "PATH": path}, seconds=PATIENCE_SECONDS) as shell:
            yield home, shell
            shell.run("outerloop db stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_a_site_is_set_up_and_a_planned_training_is_submitted_and_looked_at(site: tuple[Path, Shell]) -> None:
    needs("torch", "sklearn")
    home, shell = site
    [install] = blocks_of("install-on-a-site.md", "outerloop init --state ~/outerloop")
    written, told = typed(install, shell, home)
    said = " ".join(written)
    assert "backend slurm, lanes default" in " ".join(said.split()) and "gpu" in said, written
    assert not any(line.startswith("FAIL") for line in told), told
    config = home / ".config" / "outerloop" / "config.toml"
    text = config.read_text()
    prologue = f'prologue = "export PATH={Path(sys.executable).parent}:$PATH"\n'
    config.write_text(text.replace("[lanes.gpu]\n", f"[lanes.gpu]\n{prologue}", 1))
    prepared(
        shell,
        f"cp -r {TOP}/docs/tutorial/training ~/training && cd ~/training && git init --quiet --initial-branch main",
        "git add . && git commit --quiet --message 'A training over scanned digits'",
    )
    submit, look = blocks_of(
        "submit-a-training.md",
        "outerloop plan --model llama-3.1-8b --gpus 8xH100 --lora --tokens 1e8 --json > plan.json",
        "outerloop show RUN",
    )
    _nothing, asked = typed(submit, shell, home)
    run = re.search(r"\bt-[0-9a-f]{10}\b", " ".join(asked))
    assert run is not None, asked
    shown, printed = typed(look, shell, home, {"RUN": run[0]})
    assert any("planned" in line or run[0] in line for line in shown), shown
    until(shell, f"outerloop show {run[0]}", "finished")
    assert any("trained" in line for line in printed), printed
