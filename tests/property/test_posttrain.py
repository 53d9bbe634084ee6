"""Attacks: p values that are too small, verdicts that depend on an order or a scale, data that crashes the reader."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from outerloop.posttrain.contamination import contamination
from outerloop.posttrain.data import DataError, read_table
from outerloop.posttrain.decision import compare, mcnemar_p
from outerloop.posttrain.scorers import boxed, exact, numeric

scores = st.sampled_from([Decimal(0), Decimal(1), Decimal("0.5"), Decimal("0.3")])
sides = st.integers(1, 12).flatmap(
    lambda tasks: st.tuples(
        st.lists(st.lists(scores, min_size=1, max_size=3), min_size=tasks, max_size=tasks),
        st.lists(st.lists(scores, min_size=1, max_size=3), min_size=tasks, max_size=tasks),
    )
)


@given(sides)
@settings(max_examples=60, deadline=None)
def test_a_comparison_is_antisymmetric_and_its_p_is_one(sides: tuple[list[list[Decimal]], list[list[Decimal]]]) -> None:
    ours, theirs = ({f"t{n}": tuple(kept) for n, kept in enumerate(side)} for side in sides)
    there = compare(ours, theirs, name="c", train_seeds=(1,))
    back = compare(theirs, ours, name="c", train_seeds=(1,))
    assert there.gain == -back.gain
    assert (there.better, there.worse) == (back.worse, back.better)
    assert 0 < there.p <= 1
    # each counts the ties, so together they cover everything at least once
    assert there.p + back.p >= 1 - 1e-9
    shuffled = dict(reversed(ours.items()))
    assert compare(shuffled, theirs, name="c", train_seeds=(1,)).p == there.p


@given(st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_mcnemar_is_scipys_exact_binomial(better: int, worse: int) -> None:
    if better + worse:
        expected = binomtest(better, better + worse, 0.5, alternative="greater").pvalue
        assert mcnemar_p(better, worse) == pytest.approx(expected, rel=1e-9)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["user", "assistant", "system"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=8,
)
names = st.sampled_from(["prompt", "completion", "messages", "answer", "chosen", "rejected", "note"])
lines = st.dictionaries(names, values, max_size=5).map(json.dumps) | st.text(max_size=20) | st.just("")


@given(st.lists(lines | st.binary(max_size=20), max_size=5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_gives_a_table_or_located_problems(tmp_path: Path, rows: list[Any]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(
        b"\n".join(row if isinstance(row, bytes) else row.encode("utf-8", "surrogatepass") for row in rows)
    )
    try:
        table = read_table(path, ("sft", "dpo", "grpo"), source="t.jsonl")
    except DataError as error:
        assert all(problem.startswith("t.jsonl:") and problem.isprintable() for problem in error.problems)
    else:
        assert all(table.of(stage) for stage in ("sft", "dpo", "grpo"))
        assert all(json.loads(line) for line in table.lines())


@given(st.text(), st.text())
@settings(max_examples=60, deadline=None)
def test_scorers_answer_zero_or_one_to_anything(completion: str, answer: str) -> None:
    assert exact(completion, answer) in (0, 1)
    assert boxed(completion, answer) in (0, 1)
    assert numeric(completion, "7") in (0, 1)
    assert exact(answer, answer) == 1


words = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30).map(" ".join)


@given(st.dictionaries(st.sampled_from("xyz"), words, min_size=1), st.lists(words, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_copied_prompt_is_always_found_and_order_does_not_matter(tasks: dict[str, str], others: list[str]) -> None:
    suite = {name: (prompt, "") for name, prompt in tasks.items()}
    for name, prompt in tasks.items():
        found = contamination(suite, [*others, prompt.upper()])
        assert name in found.hit
        assert found.hit == contamination(suite, [prompt.upper(), *reversed(others)]).hit
