"""Attacks: that a contract means exactly what it says, and that a wrong one is refused whole, by line and by name."""

from __future__ import annotations

import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outerloop.climb.model import Paired, Regression, Threshold
from outerloop.contract import (
    MAX_BENCHMARKS,
    MAX_BYTES,
    Benchmark,
    Contract,
    ContractError,
    Scope,
    UnknownBenchmarkError,
    parse_contract,
    render_contract,
)

FULL = """\
[[benchmarks]]
name = "tsp"
command = "python -m bench.tsp"
metric = "tour_length"
direction = "min"
score = "python -m bench.score out/tours.json"
outputs = ["out/tours.json"]
seed_env = "TSP_SEED"
minutes = 10
cpus = 2
memory_gb = 4
gpus = 0
nodes = 1
min_delta = 0.0
min_delta_rel = 0.005
baseline = "paired"
suite = ["knapsack"]
regression = { free = 0.0, max = 0.02, requires_gain = 0.01 }
guards = [{ metric = "peak_mb", direction = "min", max_loss_rel = 0.1 }]
inputs = [{ path = "data/tsplib", digest = "content", hidden = false }]
rule = { kind = "threshold" }

[[benchmarks]]
name = "knapsack"
command = "python -m bench.knapsack"
metric = "value"
direction = "max"
suite = ["*"]
env = { OMP_NUM_THREADS = "1" }
rule = { kind = "paired", pairs = 6, alpha = 0.05 }
seed_env = "SEED"

[environment]
files = ["uv.lock", "pyproject.toml"]
setup = "uv sync --frozen"

[scope]
allowed = ["src/solver/", "setup.cfg"]
shared = ["src/common/"]

[budgets]
gpu_hours = 8
runs_per_week = 10
"""

SMALL = """\
[[benchmarks]]
name = "b"
command = "run"
metric = "m"
direction = "min"
{}
[scope]
allowed = ["src/"]
"""


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(ContractError) as caught:
        parse_contract(text, "F")
    return str(caught.value).splitlines()


def small(lines: str = "") -> Benchmark:
    return parse_contract(SMALL.format(lines)).benchmarks[0]


def test_the_full_example_means_what_it_says() -> None:
    contract = parse_contract(FULL)
    tsp = contract.benchmark("tsp")
    assert tsp.min_delta_rel == Decimal("0.005")
    assert str(tsp.min_delta_rel) == "0.005", "a floor is the number as it was written"
    assert (tsp.cpus, tsp.memory_mb, tsp.gpus, tsp.nodes) == (2, 4096, 0, 1)
    assert [other.name for other in contract.siblings("tsp")] == ["knapsack"]
    assert [other.name for other in contract.siblings("knapsack")] == ["tsp"]
    assert contract.environment is not None
    assert contract.environment.files == ("uv.lock", "pyproject.toml")
    assert contract.budgets.gpu_hours == 8
    judged = tsp.judged_by(noise_sd=Decimal(3))
    assert judged.rule == Threshold()
    assert judged.regression == Regression(Decimal("0.0"), Decimal("0.02"), Decimal("0.01"))
    assert judged.guards[0].max_loss_rel == Decimal("0.1")
    assert judged.seeded
    assert judged.noise_sd == 3
    rule = contract.benchmark("knapsack").parsed_rule()
    assert isinstance(rule, Paired)
    assert rule.pairs == 6


def test_every_mistake_is_reported_at_once_with_its_line() -> None:
    found = refused(
        """\
[[benchmarks]]
name = "tsp!"
comand = "python"
metric = tour_length
direction = "minn"
env = { PATH = "/x", OMP_NUM_THREADS = 1 }
seed_env = "LD_PRELOAD"
cpus = "2"
gpus = true
min_delta = 1e-999
suite = [
  "knapsak",
  "tsp!",
]
regression = { free = 0.3, max = 0.02, extra = 1 }
guards = [{ metric = "peak_mb" },
   { metric = "b", directon = "min", max_loss_rel = nan }]
rule = { kind = "paired", pairs = 2, beta = 1 }

[[benchmarks]]
name = "knapsack"
command = ""
command = "x"
metric = "v"
direction = "max"
rule = { kind = "sequentail" }
[[benchmarks.inputs]]
path = "/data/../x"
[[benchmarks.inputs]]
path = "x"
digset = "content"
[[benchmarks]]
name = "knapsack"
command = "x"
metric = "v"
direction = "max"
[scope]
allowed = ["/abs", "../x", "./",
  ".git/x", "src/*", ".outerloop.toml"]
[scop]
x = 1
"""
    )
    expected = {
        1: ["benchmarks[0].command: is missing"],
        2: ["benchmarks[0].name: must be 1 to 40"],
        3: ['benchmarks[0].comand: unknown key; did you mean "command"?'],
        4: ["metric: not a TOML value; text needs quotes"],
        5: ['benchmarks[0].direction: must be one of "min", "max"; did you mean "min"?'],
        6: ["benchmarks[0].env.PATH: PATH is set by the job itself", "benchmarks[0].env.OMP_NUM_THREADS: must be text"],
        7: ["benchmarks[0].seed_env: LD_* is set by the job itself"],
        8: ["benchmarks[0].cpus: must be a whole number, without quotes"],
        9: ["benchmarks[0].gpus: must be a whole number"],
        10: ["benchmarks[0].min_delta: is out of range"],
        12: ['benchmarks[0].suite[0]: there is no benchmark "knapsak"; did you mean "knapsack"?'],
        13: ["benchmarks[0].suite[1]: is the benchmark itself"],
        15: ["benchmarks[0].regression.extra: unknown key"],
        16: ["benchmarks[0].guards[0]: needs max_loss or max_loss_rel"],
        17: [
            'benchmarks[0].guards[1].directon: unknown key; did you mean "direction"?',
            "benchmarks[0].guards[1].max_loss_rel: must be a finite number",
        ],
        18: [
            "benchmarks[0].rule.beta: beta belongs to",
            "benchmarks[0].rule.pairs: pairs = 2 can never be significant",
        ],
        22: ["benchmarks[1].command: must not be empty"],
        23: ["benchmarks[1].command: given twice (first on line 22)"],
        26: ['benchmarks[1].rule.kind: kind = "sequentail" is not a rule; did you mean "sequential"?'],
        28: ["benchmarks[1].inputs[0].path: must be a path"],
        31: ['benchmarks[1].inputs[1].digset: unknown key; did you mean "digest"?'],
        33: ['benchmarks[2].name: "knapsack" is the name of another benchmark already (line 21)'],
        38: [
            "scope.allowed[0]: must be relative",
            "scope.allowed[1]: must not contain ..",
            "scope.allowed[2]: is the whole repository",
        ],
        39: [
            "scope.allowed[3]: must not name git's own folder",
            "scope.allowed[4]: patterns are not supported",
            "scope.allowed[5]: is the contract, which a candidate may never change",
        ],
        40: ['scop: unknown key; did you mean "scope"?'],
    }
    for line, texts in expected.items():
        for words in texts:
            assert any(text.startswith(f"F:{line}: {words}") for text in found), (line, words, found)
    assert len(found) == sum(len(texts) for texts in expected.values()), found


@pytest.mark.parametrize(
    "name",
    ["HOME", "PATH", "LD_LIBRARY_PATH", "GIT_DIR", "PYTHONPATH", "PYTHON", "SLURM_JOB_ID", "OUTERLOOP_STATE", "path"],
)
@pytest.mark.parametrize("where", ["seed", "env"])
def test_variables_of_the_job_may_not_be_declared(name: str, where: str) -> None:
    line = f'seed_env = "{name}"' if where == "seed" else f'env = {{ {name} = "x" }}'
    assert re.search(r"is set by the job itself and may not be declared", refused(SMALL.format(line))[0])


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä"])
def test_a_variable_needs_a_variables_name(name: str) -> None:
    assert "environment variable" in refused(SMALL.format(f'env = {{ "{name}" = "x" }}'))[0]


def test_ordinary_variables_pass() -> None:
    assert small('env = { OMP_NUM_THREADS = "2", HOMEPAGE = "x", LDFLAGS = "y", PATHS = "" }').env["PATHS"] == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('name = "x"', "given twice"),
        ("minutes = 0", "greater than 0"),
        ("minutes = 1e9", "at most"),
        ('minutes = "10"', "must be a number, without quotes"),
        ("minutes = true", "must be a number"),
        ("minutes = nan", "finite"),
        ("minutes = inf", "finite"),
        ("memory_gb = 0", "greater than 0"),
        ("cpus = 0", "greater than or equal to 1"),
        ("cpus = 2.0", "must be a whole number"),
        ("min_delta = -0.1", "must not be negative"),
        ("min_delta = 1e300", "out of range"),
        ("min_delta = " + "1" * 4000, "out of range"),
        ('min_delta = "0.1"', "must be a number"),
        ("pack = 0", "greater than or equal to 1"),
        ('eager = "yes"', "must be true or false"),
        ("eager = 1", "must be true or false"),
        ('outputs = "x"', "must be a list"),
        ('outputs = ["/x"]', "relative"),
        ('suite = "*"', "must be a list"),
        ("suite = [1]", "must be text"),
        ('lane = "GPU!"', "lane"),
        ('score = "s"', "outputs: is missing"),
        ('inputs = [{ path = "d", hidden = true }]', "hidden input"),
        ('inputs = [{ path = "d", digest = "md5:x" }]', "sha256"),
        ("inputs = [3]", "must be a table"),
        ('seed_env = "S"\nenv = { S = "1" }', "is the seed variable"),
        ("nodes = 2\ncolocate = true", "colocate: runs both sides on one node"),
        ("rule = 3", "must be a table"),
        ('rule = { kind = "paired" }\ndeterministic = true', 'use rule.kind = "threshold"'),
        ('rule = { kind = "paired" }\nbaseline = "cached"', "pairs nothing"),
        ('guards = [{ metric = "m", max_loss = 1 }]', "used twice"),
        ("regression = { free = 0.2, max = 0.1 }", "must not exceed"),
        ('isolation = "docker"', 'one of "none", "bwrap", "apptainer"'),
        ('gpu_type = "a\\nb"', "one line"),
    ],
)
def test_a_wrong_value_is_refused_on_its_line(line: str, words: str) -> None:
    found = refused(SMALL.format(line))
    assert any(words in text for text in found), found
    assert all(re.match(r"F:\d+: ", text) for text in found), found


def test_names_that_slurm_uses_itself_are_refused() -> None:
    for name in ("batch", "extern", "hetjob"):
        assert "Slurm" in refused(SMALL.format("").replace('"b"', f'"{name}"'))[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "benchmarks: is missing"),
        ("benchmarks = []\n[scope]\nallowed=['a']", "at least one benchmark"),
        ("benchmarks = 3\n[scope]\nallowed=['a']", "must be a list"),
        ("benchmarks = [3]\n[scope]\nallowed=['a']", "must be a table"),
        ("scope = 3", "must be a table"),
        ("[scope]", "no candidate could change anything"),
        (SMALL.format("").split("[scope]")[0], "scope: is missing: add a section [scope]"),
        ("a" * (MAX_BYTES + 1), "larger than 64 KiB"),
        (b"\xff", "not UTF-8"),
        ("\ud800", "not UTF-8"),
        (SMALL.format("") + "".join(f'[[benchmarks]]\nname="n{i}"\n' for i in range(MAX_BENCHMARKS)), "at most 256"),
    ],
)
def test_a_contract_that_is_none_is_refused(text: str | bytes, words: str) -> None:
    assert any(words in line for line in refused(text))


def test_the_size_limit_counts_bytes_and_the_limit_itself_passes() -> None:
    text = SMALL.format("")
    padded = text + "#" + "x" * (MAX_BYTES - len(text) - 1)
    assert len(padded.encode()) == MAX_BYTES
    assert parse_contract(padded).benchmarks
    assert "64 KiB" in refused(text + "#" + "é" * ((MAX_BYTES - len(text)) // 2 + 1))[0]


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert parse_contract(b"\xef\xbb\xbf" + SMALL.format("").encode()).benchmarks


def test_a_flood_of_problems_is_cut() -> None:
    found = refused(SMALL.format("\n".join(f"unknown{i} = 1" for i in range(3000))))
    assert len(found) == 101
    assert found[-1] == "F: and 2900 more problems"


def flood(start: str, part: str, end: str) -> str:
    """`part` (with its number) as often as fits into the size limit."""
    text = start
    for number in range(MAX_BYTES):
        more = part.replace("#", str(number))
        if len(text) + len(more) + len(end) > MAX_BYTES:
            break
        text += more
    return text + end


BENCHMARK = SMALL.split("{}")[0]
SCOPE = SMALL.split("{}")[1]


@pytest.mark.parametrize(
    ("start", "part", "end"),
    [
        ("", "k#=1\n", ""),
        (BENCHMARK, "comand#=1\n", ""),
        (BENCHMARK + "rule={kind='paired',", "k#=1,", "z=1}" + SCOPE),
        (BENCHMARK + "suite=[", '"nam#",', "]" + SCOPE),
        (BENCHMARK + "env={", "k#='1',", "z=''}" + SCOPE),
        (BENCHMARK + "guards=[", "{},", "]" + SCOPE),
        (BENCHMARK + "[scope]\nallowed=[", '"/",', "]"),
        ("", "[[benchmarks]]\n", ""),
        ("", '[[benchmarks]]\nname="n#"\nsuite=["n#x","y#"]\n', ""),
        ('"', "k", '"=1'),
        ('[[benchmarks]]\nname="', "n", '"'),
        ("", "a# = x y\n", ""),
    ],
)
def test_a_hostile_contract_costs_neither_time_nor_a_screenful_per_line(start: str, part: str, end: str) -> None:
    text = flood(start, part, end)
    assert len(text) > MAX_BYTES - 100
    started = time.process_time()
    found = refused(text)
    assert time.process_time() - started < 5
    assert len(found) <= 101
    assert max(map(len, found)) < 1500


def test_an_unknown_benchmark_suggests_the_nearest() -> None:
    with pytest.raises(UnknownBenchmarkError, match='no benchmark "tps"; did you mean "tsp"'):
        parse_contract(FULL).benchmark("tps")


@pytest.mark.parametrize(
    ("entry", "normal"),
    [("src/", "src/"), ("src", "src"), ("./src//a/./b/", "src/a/b/"), ("a/.", "a/"), ("a b/ü.py", "a b/ü.py")],
)
def test_scope_paths_are_normalised_and_a_final_slash_is_kept(entry: str, normal: str) -> None:
    assert Scope(allowed=(entry,)).allowed == (normal,)


def test_scope_permits_folders_below_and_files_exactly() -> None:
    scope = Scope(allowed=("src/solver/", "setup.cfg"), shared=("src/common/",))
    assert scope.permits("src/solver/deep/x.py")
    assert scope.permits("setup.cfg")
    assert scope.permits("src/common/x.py")
    assert scope.is_shared("src/common/x.py")
    assert not scope.is_shared("src/solver/x.py")
    for path in (
        "src/solver",
        "src/solver2/x",
        "setup.cfg/x",
        "setup.cfg2",
        "src/other",
        ".outerloop.toml",
        "src/solver/../../x",
    ):
        assert not scope.permits(path), path


CHANGES_THE_DEFINITION = {
    "command": "other",
    "metric": "other",
    "direction": "max",
    "score": "s",
    "seed_env": "OTHER",
    "deterministic": True,
    "env": {"A": "1"},
    "inputs": [{"path": "d"}],
    "cpus": 2,
    "memory_gb": 2,
    "gpus": 1,
    "gpu_type": "a100",
    "nodes": 2,
    "image": "i.sif",
}
KEEPS_THE_DEFINITION = {
    "name": "other",
    "minutes": 5,
    "min_delta": Decimal("0.1"),
    "min_delta_rel": Decimal("0.1"),
    "baseline": "cached",
    "suite": ["*"],
    "regression": {"max": Decimal(1)},
    "guards": [{"metric": "g", "max_loss": 1}],
    "rule": {"kind": "paired"},
    "eager": True,
    "pack": 3,
    "colocate": True,
    "lane": "x",
    "isolation": "bwrap",
    "network": True,
    "resumable": True,
}
PLAIN: dict[str, Any] = {"name": "b", "command": "run", "metric": "m", "direction": "min", "outputs": ["o"]}


def test_the_two_lists_name_every_field_of_a_benchmark() -> None:
    assert set(CHANGES_THE_DEFINITION) | set(KEEPS_THE_DEFINITION) | {"outputs"} == set(Benchmark.model_fields)


@pytest.mark.parametrize("field", sorted(CHANGES_THE_DEFINITION))
def test_what_changes_the_number_changes_the_definition(field: str) -> None:
    plain = Benchmark.model_validate(PLAIN).definition_hash()
    assert re.fullmatch(r"[0-9a-f]{64}", plain)
    assert Benchmark.model_validate(PLAIN | {field: CHANGES_THE_DEFINITION[field]}).definition_hash() != plain


@pytest.mark.parametrize("field", sorted(KEEPS_THE_DEFINITION))
def test_what_only_changes_the_evidence_keeps_the_definition(field: str) -> None:
    plain = Benchmark.model_validate(PLAIN).definition_hash()
    assert Benchmark.model_validate(PLAIN | {field: KEEPS_THE_DEFINITION[field]}).definition_hash() == plain


def test_the_definition_does_not_depend_on_spelling_or_order() -> None:
    one = small('memory_gb = 4\nenv = { A = "1", B = "2" }\ninputs = [{ path = "x" }, { path = "y/" }]')
    two = small('inputs = [{ path = "y/./" }, { path = "x" }]\nenv = { B = "2", A = "1" }\nmemory_gb = 4.0')
    assert one.definition_hash() == two.definition_hash()


def test_outputs_are_part_of_the_definition_when_they_are_scored() -> None:
    scored = PLAIN | {"score": "s"}
    first = Benchmark.model_validate(scored).definition_hash()
    assert Benchmark.model_validate(scored | {"outputs": ["p"]}).definition_hash() != first


def test_memory_is_rounded_up_to_whole_mebibytes() -> None:
    assert small("memory_gb = 0.0001").memory_mb == 1
    assert small("memory_gb = 1.5").memory_mb == 1536
    assert small().memory_mb is None


def test_a_written_contract_is_a_valid_one_and_its_comments_too() -> None:
    text = render_contract(
        command='python -c "print(1)"  # \\ é',
        metric='a "metric"',
        direction="max",
        name="first",
        allowed=("src/", "a b"),
        shared=("lib/",),
        seed_env="SEED",
        score="score it",
        outputs=("out/",),
        memory_gb=3,
        gpus=1,
    )
    contract = parse_contract(text)
    found = contract.benchmark("first")
    assert found.command == 'python -c "print(1)"  # \\ é'
    assert found.metric == 'a "metric"'
    assert contract.scope == Scope(allowed=("src/", "a b"), shared=("lib/",))
    plain = render_contract(command="c", metric="m", direction="min", name="n")
    uncommented = re.sub(r"^#(?=[\w\[])", "", plain, flags=re.MULTILINE)
    uncommented = uncommented.replace("deterministic = true", "")  # excludes the paired rule beside it
    uncommented = re.sub(r"^outputs = .*$", 'outputs = ["o"]', uncommented, flags=re.MULTILINE)
    assert parse_contract(uncommented).benchmark("n").seed_env == "SEED"


def test_bad_values_are_not_written_and_are_named() -> None:
    with pytest.raises(ContractError, match=r"direction: must be one of.*\n.*|name: must be") as caught:
        render_contract(command="c", metric="m", direction="up", name="a b")
    assert [problem.name for problem in caught.value.problems] == ["benchmarks[0].name", "benchmarks[0].direction"]


def test_a_terminal_is_not_steered_by_a_contract() -> None:
    found = "\n".join(refused('"\\u001b[2J" = 1\n' + SMALL.format('suite = ["\\u001b[2J"]')))
    assert "\x1b" not in found


def test_every_field_has_a_description() -> None:
    waiting: list[Any] = [Contract, Benchmark, Scope]
    while waiting:
        model = waiting.pop()
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_the_schema_can_be_generated() -> None:
    schema = Contract.model_json_schema()
    assert "benchmarks" in schema["properties"]


def test_the_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"abc1234:\.outerloop\.toml: benchmarks: is missing"):
        parse_contract("", "abc1234:.outerloop.toml")
