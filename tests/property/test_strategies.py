"""Attacks: commands and torchrun lines that nobody wrote by hand."""

from __future__ import annotations

import contextlib
import io
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outerloop.strategies import CompileError, compile_command
from outerloop.strategies.spec import file_name_reasons
from outerloop.strategies.template import filled
from outerloop.strategies.torchrun import FLAG_OPTIONS, VALUE_OPTIONS, read_torchrun

_words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@given(st.lists(_words, min_size=1, max_size=6))
def test_a_command_without_parameters_is_kept_word_for_word(words: list[str]) -> None:
    argv = ["/bin/echo", *words]
    assert compile_command(argv).argv == tuple(argv)


@given(st.text(max_size=60), st.dictionaries(st.sampled_from(["a", "b", "lr"]), st.text(max_size=8)))
def test_filling_touches_nothing_but_declared_fields(text: str, parameters: dict[str, str]) -> None:
    result = filled(text, parameters)
    if not any(f"{{{name}}}" in text for name in parameters):
        assert result == text


@given(st.text(alphabet="ab/.\\A\n", max_size=10))
@example("a/../../b")
def test_an_accepted_file_name_stays_inside(name: str) -> None:
    if not file_name_reasons([name]):
        path = PurePosixPath("/out") / name
        assert str(path) == f"/out/{name}"
        assert ".." not in path.parts


_value = st.sampled_from(["1", "2", "4", "gpu", "c10d", "x", "2:2"])
_spelling = st.sampled_from([lambda o: o, lambda o: o.replace("-", "_")])


@st.composite
def _torchrun_args(draw: st.DrawFn) -> list[str]:
    args: list[str] = []
    for option in draw(st.lists(st.sampled_from(sorted(VALUE_OPTIONS - {"start-method", "numa-binding"})), max_size=5)):
        name = "--" + draw(_spelling)(option)
        value = draw(st.sampled_from(["1", "3"])) if option in ("max-restarts", "monitor-interval") else draw(_value)
        if option in ("node-rank", "master-port", "shutdown-timeout"):
            value = "7"
        args += [f"{name}={value}"] if draw(st.booleans()) else [name, value]
    for flag in draw(st.lists(st.sampled_from(sorted(FLAG_OPTIONS - {"help"})), max_size=2)):
        args.append("--" + draw(_spelling)(flag))
    return args


@pytest.mark.torch
@settings(deadline=None, max_examples=150)
@given(_torchrun_args(), st.lists(st.sampled_from(["--nproc-per-node=9", "--nnodes", "5", "-m", "x"]), max_size=3))
def test_torchruns_own_parser_reads_the_same_counts(options: list[str], script_args: list[str]) -> None:
    run = pytest.importorskip("torch.distributed.run", reason="PyTorch is not installed")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            truth = run.get_args_parser().parse_args([*options, "train.py", *script_args])
    except SystemExit:
        return
    line = read_torchrun(["torchrun", *options, "train.py", *script_args])
    assert line is not None
    assert truth.training_script == "train.py"
    if truth.nnodes.partition(":")[0].isdecimal():
        assert line.nodes == int(truth.nnodes.partition(":")[0])
    if str(truth.nproc_per_node).isdecimal():
        assert line.processes_per_node == int(truth.nproc_per_node)


@pytest.mark.torch
def test_torchruns_options_are_the_ones_we_know() -> None:
    run = pytest.importorskip("torch.distributed.run", reason="PyTorch is not installed")
    actions = [a for a in run.get_args_parser()._actions if a.option_strings]
    long = {(o[2:], a.nargs) for a in actions for o in a.option_strings if o.startswith("--") and "_" not in o}
    assert {name for name, nargs in long if nargs == 0} == FLAG_OPTIONS
    assert {name for name, nargs in long if nargs is None} == VALUE_OPTIONS


@given(st.lists(st.sampled_from(["torchrun", "--nnodes", "--nproc-per-node", "=", "-m", "-r", "--", "-", "2", "t.py"])))
def test_any_torchrun_line_gets_a_spec_or_reasons(words: list[str]) -> None:
    try:
        spec = compile_command(["torchrun", *words])
    except CompileError as error:
        assert error.reasons
    else:
        assert spec.world_size is None or spec.world_size >= 1
