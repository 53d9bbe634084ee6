"""Attacks: that rendered TOML reads back as something else, and that layouts slip through or crash the check."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outerloop.compose import ComposeError, serving, toml_text
from outerloop.posttrain import sums
from tests.unit.compose.folders import CONTEXT, SERVING, Configs

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.dates()
    | st.datetimes()
    | st.lists(st.integers(-9, 9) | texts, max_size=3)
)
tables = st.recursive(
    st.dictionaries(texts, leaves, max_size=4),
    lambda inner: st.dictionaries(texts, leaves | inner | st.lists(inner, min_size=1, max_size=2), max_size=3),
    max_leaves=8,
)


@given(tables)
@settings(max_examples=60, deadline=None)
def test_rendered_toml_reads_back_as_it_was(config: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(config)) == config


def test_what_toml_can_not_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="no way to write None"):
        toml_text({"a": {"b": None}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    configs = Configs(tmp_path_factory.mktemp("configs"))
    configs.model("m", serving=SERVING)
    configs.method("x", serving=CONTEXT)
    return configs.root


gpus = st.lists(st.integers(0, 9), min_size=1, max_size=4)
lists = gpus.map(lambda indices: ", ".join(map(str, indices))) | st.sampled_from(["", "x", "1,,2"])


@given(
    server=lists,
    trainer=lists,
    parallel=st.integers(-1, 5),
    mode=st.sampled_from([None, "server", "colocate"]),
    flavor=st.sampled_from(["h200x8", "h200x4", "h200", "nosuch"]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_layout_is_accepted_exactly_when_it_can_work(
    folder: Path, server: str, trainer: str, parallel: int, mode: str | None, flavor: str
) -> None:
    layout = {"vllm_gpus": server, "trainer_gpus": trainer, "tensor_parallel": parallel, "flavor": flavor}
    if mode is not None:
        layout["mode"] = mode

    def indices(text: str) -> list[int] | None:
        parts = [part.strip() for part in text.split(",")]
        return [int(part) for part in parts] if all(part.isdigit() for part in parts) else None

    ours, theirs = indices(server), indices(trainer)
    count = {"h200x8": 8, "h200x4": 4, "h200": 1}.get(flavor)
    works = (
        ours is not None
        and theirs is not None
        and count is not None
        and all(len(set(part)) == len(part) and max(part) < count for part in (ours, theirs))
        and parallel == len(ours)
        and (set(ours) == set(theirs) if mode == "colocate" else not set(ours) & set(theirs))
    )
    if works:
        found = serving("m", "x", layout, configs=folder)
        assert found["vllm_gpus"] == ",".join(map(str, ours or []))
    else:
        with pytest.raises(ComposeError) as caught:
            serving("m", "x", layout, configs=folder)
        assert caught.value.problems


def test_no_held_out_sum_can_be_read_off_the_training_rows() -> None:
    parts = {part: {tuple(sorted(each)) for each in sums.summands(part)} for part in ("training", "heldout", "reserve")}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values())) == 9 * 8 * 9
    assert len({row["answer"] for part in parts for row in sums.rows(part)}) == 9 * 8 * 9
    assert sums.rows("heldout") == sums.rows("heldout")
