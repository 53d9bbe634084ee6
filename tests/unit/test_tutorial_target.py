"""The tutorial's targets: do their candidates do what the tutorial says, when they are run without outerloop?

Attacked: the instances (format, checksums, rounding, known optima, lower bounds), the score's distrust of the tours,
the order of every candidate against the base on several seeds, and the reproducibility of the built repositories.
Not covered: the verdicts that outerloop gives on them (tests/e2e).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outerloop.contract import CONTRACT_FILE, parse_contract

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial"
BASE = TUTORIAL / "target" / "base"
BRANCHES = ["main", "improve", "nothing", "break-sibling", "crash", "out-of-scope"]
SEEDS = (1, 2, 3)

CHECKSUMS = {
    "berlin52": "a07e556600220f315b999215cd75bbcc39a938d7ffdf6657cf649b50e7b4fe07",
    "eil51": "66c05ad077ffd64d5778e358bbd16be049f8c8ae880cbd24f034487331d1ccce",
    "st70": "d2cc922ebbf1a4e1a1088688a99f2239e8755d7526c4f50ee6262e23b1ca2a0a",
}
CITIES = {"berlin52": 52, "eil51": 51, "st70": 70}

# found by iterated local search (2-opt and or-opt, double-bridge kicks) on these files; cities are counted from 0
OPTIMAL_TOURS = {
    "berlin52": (
        "4 23 47 37 36 39 38 35 34 33 43 45 15 28 49 19 22 29 1 6 41 20 16 2 17 30 21 0 48 31 44 18 40 7 8 9 "
        "42 32 50 10 51 13 12 46 25 26 27 11 24 3 5 14"
    ),
    "eil51": (
        "22 6 42 23 13 24 12 40 39 18 41 43 14 44 32 38 9 48 8 29 33 49 15 20 28 1 19 34 35 2 27 30 25 7 21 0 "
        "31 10 37 4 36 16 3 17 46 11 45 50 26 5 47"
    ),
    "st70": (
        "9 4 52 5 40 42 16 8 39 60 38 44 24 45 26 67 43 29 19 13 27 48 54 25 7 2 31 41 17 3 1 6 18 23 14 56 "
        "62 65 21 58 37 68 30 34 69 12 28 35 0 22 15 46 36 57 49 50 55 64 63 10 66 47 53 61 32 33 20 11 59 51"
    ),
}


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a job would: no HOME, no variable but PATH and the declared ones."""
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def last_json(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True).stdout


def builder(name: str) -> Any:
    return runpy.run_path(str(TUTORIAL / name / "build.py"))


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """{branch: a folder with its files}, checked out from the built repository."""
    folder = tmp_path_factory.mktemp("target")
    repository = folder / "repository"
    commits = builder("target")["build"](repository)
    for branch, commit in commits.items():
        git(repository, "worktree", "add", "--quiet", "--detach", str(folder / branch), commit)
    return {branch: folder / branch for branch in commits}


@pytest.fixture(scope="module")
def scores(trees: dict[str, Path]) -> dict[str, list[dict[str, float]]]:
    """{branch: what the base's score says of its tours, one per seed}. The crashing branch is not in it."""
    found: dict[str, list[dict[str, float]]] = {}
    for branch in BRANCHES:
        if branch == "crash":
            continue
        for seed in SEEDS:
            done = run(trees[branch], "-m", "bench.tsp", TSP_SEED=str(seed))
            assert done.returncode == 0, done.stderr
            tours = trees[branch] / "out" / "tours.json"
            found.setdefault(branch, []).append(last_json(run(trees["main"], "-m", "bench.score", str(tours))))
    return found


@pytest.fixture(scope="module")
def tsplib() -> Iterator[ModuleType]:
    """The base's `bench.tsplib`, imported without leaving `bench` behind for other tests."""
    sys.path.insert(0, str(BASE))
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield importlib.import_module("bench.tsplib")
    finally:
        sys.path.remove(str(BASE))
        sys.dont_write_bytecode = dont_write
        for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
            del sys.modules[name]


# ---- the instances


@pytest.mark.parametrize("name", CHECKSUMS)
def test_an_instance_is_the_published_one(tsplib: ModuleType, name: str) -> None:
    assert hashlib.sha256((BASE / "data" / f"{name}.tsp").read_bytes()).hexdigest() == CHECKSUMS[name]
    cities = tsplib.coordinates(name)
    assert len(cities) == CITIES[name]
    assert len(set(cities)) == len(cities)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((0, 0), (3, 4), 5), ((0, 0), (1, 1), 1), ((0, 0), (1.5, 0), 2), ((0, 0), (2.5, 0), 3), ((0, 0), (2.49, 0), 2)],
)
def test_distances_round_to_nearest_with_halves_up(
    tsplib: ModuleType, a: tuple[float, float], b: tuple[float, float], expected: int
) -> None:
    assert tsplib.euc_2d(a, b) == tsplib.euc_2d(b, a) == expected


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_tour_of_the_published_optimal_length_exists(tsplib: ModuleType, name: str) -> None:
    tour = [int(city) for city in OPTIMAL_TOURS[name].split()]
    assert tsplib.length(tour, tsplib.distances(name)) == tsplib.OPTIMUM[name]


def one_tree_bound(distance: list[list[int]], target: int, rounds: int) -> float:
    """A lower bound on the length of any tour: Held and Karp, 1970 and 1971, by subgradient ascent.

    Any penalties give a valid bound, so the step rule only decides how tight it is: Polyak's step towards `target`,
    scaled down when 15 rounds brought nothing, along 0.7 of the new and 0.3 of the last direction.
    """
    cities = len(distance)
    penalty = [0.0] * cities
    scale, stale, best = 2.0, 0, 0.0
    last: list[int] | None = None
    for _ in range(rounds):
        degree = [0] * cities
        weight = 0.0
        # Prim's minimum spanning tree of all cities but 0
        nearest, joins = [float("inf")] * cities, [-1] * cities
        nearest[1] = 0.0
        outside = set(range(1, cities))
        while outside:
            city = min(outside, key=nearest.__getitem__)
            outside.remove(city)
            if joins[city] >= 0:
                weight += nearest[city]
                degree[city] += 1
                degree[joins[city]] += 1
            for other in outside:
                cost = distance[city][other] + penalty[city] + penalty[other]
                if cost < nearest[other]:
                    nearest[other], joins[other] = cost, city
        for cost, city in sorted((distance[0][c] + penalty[0] + penalty[c], c) for c in range(1, cities))[:2]:
            weight += cost
            degree[0] += 1
            degree[city] += 1
        bound = weight - 2 * sum(penalty)
        best, stale = (bound, 0) if bound > best else (best, stale + 1)
        if stale == 15:
            scale, stale = 0.7 * scale, 0
        slope = [d - 2 for d in degree]
        if not any(slope) or bound >= target:
            break
        step = scale * (target - bound) / sum(s * s for s in slope)
        last = last or slope
        penalty = [p + step * (0.7 * s + 0.3 * old) for p, s, old in zip(penalty, slope, last, strict=True)]
        last = slope
    return best


@pytest.mark.parametrize(("name", "shortest"), [("berlin52", 7542), ("eil51", 422), ("st70", 670)])
def test_no_tour_is_shorter_than_the_one_tree_bound(tsplib: ModuleType, name: str, shortest: int) -> None:
    optimum = tsplib.OPTIMUM[name]
    bound = one_tree_bound(tsplib.distances(name), optimum, rounds=300)
    # lengths are integers, so berlin52's bound above 7541 proves its optimum
    assert shortest - 1 < bound < optimum + 1e-6
    assert bound > 0.99 * optimum


# ---- the benchmarks


def test_the_contract_declares_what_the_benchmarks_print(
    trees: dict[str, Path], scores: dict[str, list[dict[str, float]]]
) -> None:
    contract = parse_contract((trees["main"] / CONTRACT_FILE).read_bytes())
    tsp, knapsack = contract.benchmarks
    assert {tsp.metric, *(guard.metric for guard in tsp.guards)} <= set(scores["main"][0])
    assert knapsack.metric in last_json(run(trees["main"], "-m", "bench.knapsack"))
    assert (tsp.seed_env, tsp.deterministic) == ("TSP_SEED", False)
    assert (knapsack.seed_env, knapsack.deterministic) == ("", True)
    assert tsp.outputs == ("out/tours.json",)
    for command in (tsp.command, tsp.score, knapsack.command):
        program, flag, module, *_ = command.split()
        assert (program, flag) == ("python3", "-m")
        assert (trees["main"] / f"{module.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("seed", ["", "0", "-1", "1.5", "one"])
def test_a_seed_that_nobody_drew_is_refused(trees: dict[str, Path], seed: str) -> None:
    done = run(trees["main"], "-m", "bench.tsp", TSP_SEED=seed)
    assert done.returncode != 0
    assert "TSP_SEED" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_seed_decides_the_tours(trees: dict[str, Path], scores: dict[str, list[dict[str, float]]]) -> None:
    assert run(trees["main"], "-m", "bench.tsp", TSP_SEED="1").returncode == 0
    assert last_json(run(trees["main"], "-m", "bench.score", "out/tours.json")) == scores["main"][0]
    assert len({score["tour_ratio"] for score in scores["main"]}) == len(SEEDS)


BROKEN_TOURS = {
    "no file": None,
    "not json": "[[[",
    "deep": "[" * 100_000,
    "a list": "[]",
    "an instance is missing": '{"berlin52": [], "eil51": []}',
    "too few tours": '{"berlin52": [], "eil51": [], "st70": []}',
}


@pytest.mark.parametrize("kind", BROKEN_TOURS)
def test_the_score_refuses_what_is_not_a_result(trees: dict[str, Path], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tours.json"
    content = BROKEN_TOURS[kind]
    if content is not None:
        path.write_text(content)
    done = run(trees["main"], "-m", "bench.score", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "tour", [[0, 1], [0, 1, 1], [0, 1, 2, 3], [0, 1, True], [0, 1, 2.0], [0, 1, -1], ["0", "1", "2"], 3, None, {}]
)
def test_a_length_is_given_to_tours_only(tsplib: ModuleType, tour: object) -> None:
    with pytest.raises(ValueError, match="tour"):
        tsplib.length(tour, [[0, 1, 1], [1, 0, 1], [1, 1, 0]])


# ---- the candidates


def test_no_candidate_beats_an_optimum(scores: dict[str, list[dict[str, float]]], tsplib: ModuleType) -> None:
    for of_branch in scores.values():
        for score in of_branch:
            assert 1.0 <= score["tour_ratio"] <= score["worst_ratio"]
            assert all(score[name] >= optimum for name, optimum in tsplib.OPTIMUM.items())


@pytest.mark.parametrize("branch", ["improve", "break-sibling"])
def test_two_opt_is_better_on_every_seed(scores: dict[str, list[dict[str, float]]], branch: str) -> None:
    for base, candidate in zip(scores["main"], scores[branch], strict=True):
        # far above the contract's floor of half a percent, and within its guard
        assert candidate["tour_ratio"] < 0.9 * base["tour_ratio"]
        assert candidate["worst_ratio"] <= base["worst_ratio"]


def test_nothing_changes_nothing(trees: dict[str, Path], scores: dict[str, list[dict[str, float]]]) -> None:
    assert scores["nothing"] == scores["main"]
    assert (trees["nothing"] / "solver/tsp.py").read_text() != (trees["main"] / "solver/tsp.py").read_text()


def test_only_break_sibling_makes_the_sibling_worse(trees: dict[str, Path]) -> None:
    contract = parse_contract((trees["main"] / CONTRACT_FILE).read_bytes())
    base = run(trees["main"], "-m", "bench.knapsack")
    value = last_json(base)["value_ratio"]
    assert value <= 1.0
    assert run(trees["improve"], "-m", "bench.knapsack").stdout == base.stdout
    (knapsack,) = [b for b in contract.benchmarks if b.name == "knapsack"]
    assert knapsack.regression is not None
    forgiven = float(knapsack.regression.max)
    assert last_json(run(trees["break-sibling"], "-m", "bench.knapsack"))["value_ratio"] < (1 - forgiven) * value


def test_the_base_lets_descents_end_by_themselves(trees: dict[str, Path], tmp_path: Path) -> None:
    """Ten times the evaluations change nothing: what break-sibling takes away was enough."""
    patient = tmp_path / "patient"
    shutil.copytree(trees["improve"], patient)
    descent = patient / "common" / "descent.py"
    before = descent.read_text()
    descent.write_text(before.replace("EVALUATIONS = 100_000", "EVALUATIONS = 1_000_000"))
    assert descent.read_text() != before
    for folder in (trees["improve"], patient):
        assert run(folder, "-m", "bench.tsp", TSP_SEED="1").returncode == 0
    tours = [(folder / "out" / "tours.json").read_text() for folder in (trees["improve"], patient)]
    assert tours[0] == tours[1]
    knapsacks = [run(folder, "-m", "bench.knapsack") for folder in (trees["improve"], patient)]
    assert last_json(knapsacks[0]) == last_json(knapsacks[1])


def test_crash_raises_and_leaves_no_tours(trees: dict[str, Path]) -> None:
    done = run(trees["crash"], "-m", "bench.tsp", TSP_SEED="1")
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    assert not (trees["crash"] / "out" / "tours.json").exists()


def test_each_candidate_touches_what_the_tutorial_says(trees: dict[str, Path]) -> None:
    repository = trees["main"].parent / "repository"
    scope = parse_contract((trees["main"] / CONTRACT_FILE).read_bytes()).scope
    touched = {
        branch: git(repository, "diff-tree", "-r", "--name-only", "main", branch).split() for branch in BRANCHES[1:]
    }
    assert touched == {
        "improve": ["solver/tsp.py"],
        "nothing": ["solver/tsp.py"],
        "break-sibling": ["common/descent.py", "solver/tsp.py"],
        "crash": ["solver/tsp.py"],
        "out-of-scope": ["bench/score.py", "solver/tsp.py"],
    }
    outside = {branch for branch, paths in touched.items() if not all(map(scope.permits, paths))}
    concerns_siblings = {branch for branch, paths in touched.items() if any(map(scope.is_shared, paths))}
    assert (outside, concerns_siblings) == ({"out-of-scope"}, {"break-sibling"})


def test_the_out_of_scope_score_would_have_flattered(
    trees: dict[str, Path], scores: dict[str, list[dict[str, float]]]
) -> None:
    own = last_json(run(trees["out-of-scope"], "-m", "bench.score", "out/tours.json"))
    assert own["tour_ratio"] < scores["out-of-scope"][-1]["tour_ratio"] - 0.02


# ---- the builders


@pytest.mark.parametrize("name", ["target", "stranger"])
def test_a_build_is_the_same_everywhere(name: str, tmp_path: Path) -> None:
    here = builder(name)["build"](tmp_path / "here")
    hostile = tmp_path / "gitconfig"
    hostile.write_text(
        "[user]\n\tuseConfigOnly = true\n[commit]\n\tgpgSign = true\n[core]\n\tautocrlf = true\n"
        "[init]\n\tdefaultObjectFormat = sha256\n\tdefaultBranch = trunk\n"
    )
    script = TUTORIAL / name / "build.py"
    # no HOME, a relative destination, somebody else's git configuration and index in the environment
    done = run(
        tmp_path,
        str(script),
        "there",
        GIT_CONFIG_GLOBAL=str(hostile),
        GIT_DIR="/nonexistent",
        GIT_INDEX_FILE="/nonexistent",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{commit} {branch}" for branch, commit in here.items()]
    there = tmp_path / "there"
    assert git(there, "status", "--porcelain") == ""
    assert git(there, "symbolic-ref", "--short", "HEAD").strip() == "main"
    if name == "target":
        assert list(here) == BRANCHES


@pytest.mark.parametrize("name", ["target", "stranger"])
def test_a_folder_with_files_is_not_built_into(name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    done = run(tmp_path, str(TUTORIAL / name / "build.py"), str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_leftovers_of_a_benchmark_do_not_get_into_the_repository(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in ("base/a.py", "base/__pycache__/a.pyc", "base/out/tours.json", "commits/1-one/a.py"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("x")
    target = builder("target")
    with pytest.raises(Exception, match=r"1-one has no message\.txt"):
        target["build"](tmp_path / "built", source)
    assert not (tmp_path / "built").exists()
    (source / "commits/1-one/message.txt").write_text("one")
    (source / "commits/one").mkdir()
    with pytest.raises(Exception, match="not a folder named ORDER-BRANCH"):
        target["build"](tmp_path / "built", source)
    (source / "commits/one").rmdir()
    target["build"](tmp_path / "built", source)
    assert git(tmp_path / "built", "ls-tree", "-r", "--name-only", "one").split() == ["a.py"]


# ---- the stranger


def test_the_strangers_candidate_is_better(tmp_path: Path) -> None:
    repository = tmp_path / "stranger"
    assert list(builder("stranger")["build"](repository)) == ["main", "optimal-fit"]
    assert not (repository / ".outerloop.toml").exists()

    def raggedness() -> float:
        done = run(repository, "-m", "benchmarks.raggedness")
        assert done.returncode == 0, done.stderr
        name, value = done.stdout.splitlines()[-1].split()
        assert name == "raggedness"
        return float(value)

    before = raggedness()
    git(repository, "checkout", "--quiet", "optimal-fit")
    assert raggedness() < 0.97 * before
