"""Attacks: a user's braces eaten, a script's option read as torchrun's, a world size that is wrong by a factor."""

from __future__ import annotations

import pytest

from outerloop.strategies import CompileError, LaunchSpec, compile_command


def reasons_of(command: str | list[str], **options: object) -> str:
    with pytest.raises(CompileError) as caught:
        compile_command(command, **options)  # type: ignore[arg-type]
    return "\n".join(caught.value.reasons)


def test_only_declared_names_in_braces_are_filled_and_only_once() -> None:
    spec = compile_command(
        ["run", '{"lr": {lr}, "n": {"m": 1}}', "{{ jinja }}", "${lr}", "{lr.real}", "{lr:.2f}", "{other}", "{name}"],
        parameters={"lr": 1e-05, "name": "{lr}"},
    )
    assert spec.argv == (
        "run",
        '{"lr": 1e-05, "n": {"m": 1}}',
        "{{ jinja }}",
        "${lr}",
        "{lr.real}",
        "{lr:.2f}",
        "{other}",
        "{lr}",
    )
    assert spec.notes == ("{other} is no declared parameter and stays as it is",)


def test_parameters_reach_env_and_files_and_booleans_are_json() -> None:
    spec = compile_command(
        "run", parameters={"fast": True}, env={"FAST": "{fast}"}, files={"a/b.json": '{"f": {fast}}'}
    )
    assert spec.env == {"FAST": "true"}
    assert spec.files == {"a/b.json": '{"f": true}'}


def test_a_misspelt_field_is_refused_and_the_right_one_named() -> None:
    assert "did you mean it where {learning_rat} stands?" in reasons_of(
        "train --lr {learning_rat}", parameters={"learning_rate": 0.1}
    )


@pytest.mark.parametrize(
    ("command", "world"),
    [
        ("torchrun --nproc-per-node=4 t.py", 4),
        ("torchrun --nproc_per_node 4 t.py", 4),
        ("torchrun --nproc-per=4 t.py", 4),
        ("/opt/env/bin/torchrun --nproc-per-node 4 -m pkg.train", 4),
        ("python -m torch.distributed.run --nproc-per-node=4 t.py", 4),
        ("python3.11 -u -X dev -W error -m torch.distributed.run --nproc-per-node=4 t.py", 4),
        ("torchrun --nnodes=2 --nproc-per-node=4 t.py", 8),
        ("torchrun --nnodes=2:2 --nproc-per-node=4 t.py", 8),
        ("torchrun t.py --nproc-per-node=4 --nnodes=9", 1),
        ("torchrun --role nproc --nproc-per-node=2 t.py --nproc_per_node 7", 2),
        ("torchrun -r3 -t 3 --nproc-per-node=2 t.py", 2),
        ("torchrun -mr3 --nproc-per-node=2 pkg", 2),
        ("torchrun --nproc-per-node=2 -- t.py", 2),
        ("torchrun --nproc-per-node=gpu t.py", None),
        ("torchrun --nnodes=2 --nproc-per-node auto t.py", None),
        ("python train.py --nproc-per-node=4", 1),
        ("my-torchrun --nproc-per-node=4 t.py", 1),
    ],
)
def test_the_worker_count_is_read_from_torchruns_own_options(command: str, world: int | None) -> None:
    spec = compile_command(command)
    assert spec.world_size == world
    assert (spec.rendezvous is not None) == ("--nnodes=2" in command)
    if world is None:
        assert any("resolved at launch" in note for note in spec.notes)


def test_a_count_may_be_a_parameter() -> None:
    assert compile_command("torchrun --nproc-per-node={n} t.py", parameters={"n": 6}).world_size == 6


def test_what_is_missing_is_added_before_the_script_and_said() -> None:
    spec = compile_command("torchrun --nproc-per-node=2 t.py --x")
    assert spec.argv == (
        *("torchrun", "--standalone", "--max-restarts=0", "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1"),
        *("--nproc-per-node=2", "t.py", "--x"),
    )
    assert any("--standalone" in note for note in spec.notes)
    both = compile_command("torchrun --nnodes=2 --max_restarts 0 --signals-to-handle=SIGTERM t.py")
    assert both.argv[:5] == (
        *("torchrun", "--rdzv-backend=c10d", "--rdzv-id=@OUTERLOOP_RDZV_ID@"),
        *("--rdzv-endpoint=@OUTERLOOP_RDZV_ENDPOINT@", "--nnodes=2"),
    )


def test_addresses_elastic_sizes_and_restarts_are_refused_together() -> None:
    reasons = reasons_of(
        "torchrun --nnodes=1:4 --nproc-per-node=many --master-port 29500 --rdzv_endpoint=n1:1 --max-restarts=3 "
        "--nodes-rank 0 t.py"
    )
    for part in (
        "elastic",
        "many",
        "--master-port",
        "--rdzv-endpoint",
        "--max-restarts must be 0",
        "--nodes-rank is not",
    ):
        assert part in reasons


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("torchrun", "no script"),
        ("torchrun --nproc-per-node", "has no value"),
        ("torchrun --help", "help text"),
        ("torchrun --standalone --nnodes=2 t.py", "is for one node"),
        ("torchrun --nnodes=0 t.py", "not a number of nodes"),
        ("torchrun --nproc-per-node=0 t.py", "neither a number"),
        ("python 'x.py", "split into words"),
        ("python a.py && python b.py", "no shell"),
        ("", "empty"),
        ("LR=1 python a.py", "assignment"),
        (["a", "b\0c"], "NUL"),
        ("run @OUTERLOOP_FILES@", "reserved"),
    ],
)
def test_what_is_refused(command: str | list[str], part: str) -> None:
    assert part in reasons_of(command)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("../x", "leaves"),
        ("a/../../x", "leaves"),
        ("/x", "leaves"),
        ("a//b", "plain form"),
        ("./a", "plain form"),
        ("", "empty"),
        ("a\\b", "backslash"),
        ("a\nb", "control character"),
    ],
)
def test_file_names_cannot_leave_the_output_folder(name: str, part: str) -> None:
    assert part in reasons_of("run", files={name: ""})


def test_files_that_clash_are_refused() -> None:
    reasons = reasons_of("run", files={"a": "", "A": "", "a/b": ""})
    assert "differ in case" in reasons
    assert "'a/b' lies below another file" in reasons


def test_parameters_must_be_finite_plain_names() -> None:
    reasons = reasons_of("run {x}", parameters={"x": float("inf"), "a.b": 1, "y": "\0"})
    for part in ("inf", "'a.b' is not a plain name", "'y' holds a NUL"):
        assert part in reasons


def test_a_spec_survives_its_own_json() -> None:
    spec = compile_command("torchrun --nnodes=2 --nproc-per-node=2 t.py", files={"a": "ü"}, env={"B": "2", "A": "1"})
    assert LaunchSpec.model_validate_json(spec.canonical_json()) == spec
    assert spec.canonical_json().isascii()
