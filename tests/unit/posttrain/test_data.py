"""Attacks: rows that would fail in the middle of a training, and messages that name the wrong place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outerloop.posttrain import data
from outerloop.posttrain.data import DataError, read_table

GOOD = {"prompt": "one plus one", "completion": "two", "answer": "two"}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def problems(path: Path, stages: tuple[str, ...] = ("sft", "grpo")) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_table(path, stages, source="train.jsonl")
    return caught.value.problems


def test_a_row_serves_every_stage_whose_fields_it_has(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    path = written(tmp_path, GOOD, "", {"messages": talk, "source": "web"}, {"prompt": "p", "answer": "7"})
    table = read_table(path, ("sft", "grpo"))
    assert table.of("sft") == [
        {
            "prompt": [{"role": "user", "content": "one plus one"}],
            "completion": [{"role": "assistant", "content": "two"}],
        },
        {"prompt": talk[:1], "completion": talk[1:]},
    ]
    assert [row["answer"] for row in table.of("grpo")] == ["two", "7"]
    assert set(table.texts()) >= {"one plus one", "two", "hi", "yo", "p", "7"}


def test_ten_malformed_rows_give_one_message_with_ten_lines(tmp_path: Path) -> None:
    bad: list[Any] = [
        {"prompt": "p", "completion": 3},
        {"prompt": "", "completion": "c"},
        {"prompt": "p"},
        {"prompt": "p", "complettion": "c"},
        "{not json",
        "[1]",
        '{"prompt": "a", "prompt": "b", "completion": "c"}',
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "usr", "content": "x"}, {"role": "assistant", "content": "y"}]},
        '{"prompt": "\\ud800", "completion": "c"}',
    ]
    found = problems(written(tmp_path, GOOD, *bad, GOOD))
    assert len(found) == 10
    assert found == (
        "train.jsonl:2: completion: must be text or a list of messages, not a number",
        "train.jsonl:3: prompt: is empty",
        "train.jsonl:4: completion: is missing; a row has prompt and completion, or messages, or prompt and answer",
        'train.jsonl:5: completion: is missing; is "complettion" meant?',
        "train.jsonl:6: not JSON: Expecting property name enclosed in double quotes at character 2",
        "train.jsonl:7: must be a JSON object, one per line",
        "train.jsonl:8: prompt: given twice",
        "train.jsonl:9: messages[0].role: the last message must be the assistant's",
        "train.jsonl:10: messages[0].role: must be one of system, user, assistant, tool",
        "train.jsonl:11: prompt: holds half of a surrogate pair, which is no character",
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": None, "answer": "x"}, "prompt: must be text or a list of messages, not null"),
        ({"prompt": "x\0", "answer": "x"}, "prompt: holds a null character"),
        ({"prompt": [], "answer": "x"}, "prompt: must be text or a list of messages, not an empty list"),
        ({"prompt": ["x"], "answer": "x"}, 'prompt[0]: must be {"role", "content"}, not text'),
        ({"prompt": [{"role": "user"}], "answer": "x"}, "prompt[0].content: is missing"),
        (
            {"prompt": [{"role": "user", "content": "a", "name": "b"}], "answer": "x"},
            "prompt[0].name: unknown; a message has role and content",
        ),
        (
            {"prompt": [{"role": "assistant", "content": "a"}], "answer": "x"},
            "prompt[0].role: a prompt does not end with the assistant's message",
        ),
        (
            {"prompt": "a", "completion": [{"role": "user", "content": "a"}]},
            'completion: holds messages of "assistant" only',
        ),
        ({"prompt": "a", "answer": True}, "answer: must be text, not true or false"),
        ('{"prompt": "a", "answer": NaN}', "not JSON: NaN is not JSON"),
        ("[" * 100_000, "not JSON"),
        ({"\x1b[2J": "x"}, "prompt, completion: are missing"),
        ({"prompt\x1b[2J": "x", "answer": "y"}, 'prompt: is missing; is "prompt\\x1b[2J" meant?'),
    ],
)
def test_a_malformed_row_is_named_by_line_and_field(tmp_path: Path, row: Any, message: str) -> None:
    [found] = problems(written(tmp_path, GOOD, row))
    assert found.startswith("train.jsonl:2: ")
    assert message in found
    assert found.isprintable()


def test_preference_rows_need_all_three(tmp_path: Path) -> None:
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    table = read_table(written(tmp_path, good), ("dpo",))
    assert list(table.of("dpo")[0]) == ["prompt", "chosen", "rejected"]
    assert "rejected: is missing" in problems(written(tmp_path, {"prompt": "p", "chosen": "a"}), ("dpo",))[0]


def test_a_stage_without_rows_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    assert problems(written(tmp_path, {"prompt": "p", "answer": "a"})) == (
        "train.jsonl: no row has prompt and completion, or messages, which sft needs",
    )
    assert len(problems(written(tmp_path, ""))) == 2


def test_what_is_not_text_at_all_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    assert problems(path) == ("train.jsonl:2: not UTF-8 text (invalid start byte at byte 0 of the line)",)


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LONGEST_ROW", 1000)
    [found] = problems(written(tmp_path, "x" * 5000))
    assert "train.jsonl:1: a row of more than" in found


def test_more_problems_than_a_person_reads_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="… and 150 more") as caught:
        read_table(written(tmp_path, *([{}] * (data.MOST_LISTED + 150))), ("sft",))
    assert len(caught.value.problems) == data.MOST_LISTED


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    first = read_table(written(tmp_path, GOOD), ("sft",)).digest
    spelled = '\ufeff{ "completion" : "tw\\u006f",   "prompt":"one plus one", "note": 1 }'
    assert read_table(written(tmp_path, spelled), ("sft",)).digest == first
    assert read_table(written(tmp_path, {**GOOD, "completion": "three"}), ("sft",)).digest != first
    assert read_table(written(tmp_path, GOOD), ("sft", "grpo")).digest != first
