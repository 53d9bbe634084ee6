"""The manual's blocks that take minutes, packages or a browser's patience: each is typed as the page shows it.

By night (OUTERLOOP_NIGHTLY), because together they take a quarter of an hour. A block is run without its `pip install`
lines, which tests/stranger follows for the packages of the README. Blocks of the pages that are not here: test_docs.py
names the test of each, or why none can run it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.e2e.documents import Block, Shell, console_blocks, difference
from tests.e2e.test_tutorial import HOW_TO, TOP, clone, environment, home, normalised

__all__ = ["home"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes minutes: set OUTERLOOP_NIGHTLY"),
]
PATIENCE_SECONDS = 1500.0
LOOK_SECONDS = 2.0


def blocks_of(page: str, *firsts: str) -> list[Block]:
    """The blocks of a how-to page that begin with these commands, in this order."""
    found = console_blocks((HOW_TO / page).read_text(encoding="utf-8"))
    chosen = []
    for first in firsts:
        [block] = [block for block in found if first in [command.text for command in block.commands[:2]]]
        found.remove(block)
        chosen.append(block)
    return chosen


def typed(
    block: Block,
    shell: Shell,
    home: Path,
    said: Mapping[str, str] | None = None,
    codes: Mapping[str, int] | None = None,
) -> list[list[str]]:
    """Type a block, with what the page says of its example replaced by what is here; check outputs, and exit codes:
    `codes` names commands that rightly end with another one here."""
    outputs = []
    for command in block.commands:
        if command.text.startswith("pip install "):
            continue
        text = command.text
        for shown, real in (said or {}).items():
            text = text.replace(shown, real)
        code, output = shell.run(text)
        lines = normalised(output, home)
        wanted = block.exit if command is block.commands[-1] else 0
        assert code == (codes or {}).get(command.text, wanted), f"$ {text} ended with {code}:\n{output}"
        if command.output:
            assert not (wrong := difference(command.output, lines)), f"$ {text}\n{wrong}\n" + "\n".join(lines)
        outputs.append(lines)
    return outputs


def prepared(shell: Shell, *commands: str) -> str:
    """Type what the page's reader has done before; the last output."""
    output = ""
    for command in commands:
        code, output = shell.run(command)
        assert code == 0, f"$ {command}\n{output}"
    return output


def configured(shell: Shell, home: Path) -> None:
    """A deployment on this machine whose jobs find this environment's programs."""
    prepared(shell, "outerloop init --state ~/outerloop --backend local")
    config = home / ".config" / "outerloop" / "config.toml"
    lane = f'\n[lanes.default]\nprologue = "export PATH={Path(sys.executable).parent}:$PATH"\n'
    text = config.read_text()
    assert not re.search(r"^\[lanes\.default\]", text, re.MULTILINE)
    config.write_text(text + lane)


def needs(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def test_the_training_helpers_script_runs_by_hand(home: Path) -> None:
    needs("torch")
    page = (HOW_TO / "training-helper.md").read_text(encoding="utf-8")
    script = re.search(r"```python title=\"train\.py\"\n(.*?)```", page, re.DOTALL)
    assert script is not None
    (home / "train.py").write_text(script[1])
    [block] = blocks_of("training-helper.md", "OUTERLOOP_CKPT_DIR=ckpt OUTERLOOP_OUTPUT_DIR=out python train.py")
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        typed(block, shell, home)
    assert (home / "out" / "run.json").is_file() and list((home / "ckpt").glob("step-*/manifest.json"))


def test_a_campaign_is_watched_and_talked_to(home: Path) -> None:
    needs("torch", "sklearn", "matplotlib")
    watch, talk = blocks_of(
        "run-a-campaign.md",
        "outerloop submit campaign digits.toml",
        "outerloop logs s-0123456789 train/champ-g001-r0003-wide",
    )
    clone(home)
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        configured(shell, home)
        prepared(
            shell,
            f"cp -r {TOP}/configs/campaigns ~/campaign && cd ~/campaign && git init --quiet --initial-branch main",
            "git add . && git commit --quiet --message 'A campaign over small gates'",
        )
        run = re.search(r"s-[0-9a-f]{10}", prepared(shell, "outerloop submit campaign digits.toml"))
        assert run is not None
        until(shell, "outerloop campaign events digits --all", r"\bchampion: ")
        typed(watch, shell, home)  # submitting again goes on with the one that there is
        assert (home / "campaign" / "digits.png").read_bytes().startswith(b"\x89PNG")
        said = {"s-0123456789": run[0], "champ-g001-r0003-wide": "champ-g001-r0001-wide"}
        typed(talk, shell, home, said, {"outerloop campaign retry digits": 3})  # nothing has failed
        prepared(shell, "outerloop campaign cancel digits")


def until(shell: Shell, command: str, wanted: str, *, ticks: bool = True) -> str:
    """Ask until the answer has what is wanted; ticks do what wake jobs may have lost."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    output = ""
    while time.monotonic() < deadline:
        _code, output = shell.run(command)
        if re.search(wanted, output):
            return output
        if ticks:
            shell.run("outerloop tick --quiet")
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"$ {command} never said {wanted}:\n{output}")


ROWS = "import json; from outerloop.posttrain.sums import rows; print(*map(json.dumps, rows('training')), sep='\\n')"


def test_an_entry_is_submitted(home: Path) -> None:
    needs("trl")
    [block] = blocks_of("post-training-challenge.md", "outerloop submit entry tiny-sums --train good.jsonl --dry-run")
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        configured(shell, home)
        prepared(shell, f'python -c "{ROWS}" > good.jsonl')
        typed(block, shell, home)


def test_an_entry_runs_in_one_place_and_is_judged(home: Path) -> None:
    needs("trl")
    alone, judge, reserve = blocks_of(
        "post-training-challenge.md",
        "outerloop compose render tiny-sums --train train.jsonl > entry.toml",
        "outerloop challenge judge tiny-sums --entry run",
        "outerloop compose render tiny-sums --suite tiny-sums-reserve --train train.jsonl > reserve.toml",
    )
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        configured(shell, home)
        prepared(shell, f'python -c "{ROWS}" > train.jsonl')
        typed(alone, shell, home)
        [told] = typed(judge, shell, home)
        assert any("tiny-sums" in line for line in told), told
        typed(reserve, shell, home)


def test_a_pinned_model_is_fetched_and_trained(home: Path) -> None:
    """From a hub of this machine, whose model is the built-in one under a name and a commit."""
    needs("trl", "huggingface_hub")
    from outerloop.compose import toml_text
    from outerloop.posttrain import builtin, sums
    from tests.posttrain.test_fetch import REVISION, Hub

    [block] = blocks_of(
        "post-training-challenge.md", "HF_TOKEN=… python -m outerloop.posttrain.fetch entry.toml --hub /shared/hub"
    )
    builtin.make_tiny_llama(home / "made")
    (home / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in sums.rows("training")))
    heldout = "".join(f"{json.dumps(row)}\n" for row in sums.rows("heldout"))
    hub = Hub()
    try:
        hub.repos["models/o/m"] = {path.name: path.read_bytes() for path in (home / "made").iterdir()}
        hub.repos["datasets/o/d"]["main/test.jsonl"] = heldout.encode()
        told = {"HF_TOKEN=…": "HF_TOKEN=hf_secret", "/shared/hub": "~/hub"}
        with Shell(home, {**environment(home), "HF_ENDPOINT": hub.endpoint}, seconds=PATIENCE_SECONDS) as shell:
            prepared(shell, "outerloop compose render tiny-sums --train train.jsonl > entry.toml")
            entry = tomllib.loads((home / "entry.toml").read_text())
            entry["model"] = {"id": "o/m", "revision": REVISION}
            entry["eval_dataset"] |= {"repo_id": "o/d", "revision": REVISION, "path": "main/test.jsonl"}
            (home / "entry.toml").write_text(toml_text(entry))
            fetched, trained = typed(block, shell, home, told)
    finally:
        hub.close()
    assert hub.tokens == {"Bearer hf_secret"} and any(f"model o/m@{REVISION}" in line for line in fetched), fetched
    assert any(re.match(r"evaluate: \S+ 0\.\d+ over 100 tasks", line) for line in trained), trained


@pytest.mark.parametrize("words", [["outerloop", "view"], ["outerloop", "view", "--token"]])
def test_the_view_serves_until_it_is_interrupted(home: Path, words: list[str]) -> None:
    shown = [
        command.text
        for block in console_blocks((HOW_TO / "look-in-a-browser.md").read_text())
        for command in block.commands
    ]
    assert " ".join(words) in shown
    with Shell(home, environment(home), seconds=PATIENCE_SECONDS) as shell:
        configured(shell, home)
    program = Path(sys.executable).parent / "outerloop"
    serving = subprocess.Popen(
        [str(program), *words[1:]], env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None and serving.stderr is not None
        address = serving.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:8765/"), serving.stderr.read()
        url, _, token = address.partition("?token=")
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"} if token else {}), timeout=60) as answer:
            assert b"What is going on" in answer.read()
        assert bool(token) is ("--token" in words)
    finally:
        serving.send_signal(signal.SIGINT)
        _out, error = serving.communicate(timeout=60)
    assert serving.returncode == 0 and "Aborted" not in error and "Traceback" not in error, error
