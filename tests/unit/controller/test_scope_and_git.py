"""The scope check on real diffs, the mirror, and sealing a working tree: with a real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from outerloop.contract import CONTRACT_FILE, Scope
from outerloop.controller.git import GitError, Mirror, Repository
from outerloop.controller.plan import ContractGone
from outerloop.controller.scope import scope_problems
from outerloop.controller.submit import prepare_climb
from outerloop.settings import Settings
from outerloop.slots import StateRoot

SCOPE = Scope(allowed=("src/",), shared=("lib/one.py",))


def git(folder: Path, *arguments: str, **env: str) -> str:
    base = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@localhost",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@localhost",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env={**base, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    for path in ("src/a.py", "src/b.py", "bench/run.py", "lib/one.py", "lib/two.py", ".outerloop.toml"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"# {path}\n" * 20)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirror.git")


def problems(clone: Path, mirror: Mirror) -> dict[str, str]:
    """What the scope check says of the clone's working tree against main."""
    repo = Repository.open(clone)
    commits = {"base": repo.commit("main"), "candidate": repo.seal_worktree()}
    mirror.pin(repo, commits)
    changes = mirror.changes(mirror.tree(commits["base"]), mirror.tree(commits["candidate"]))
    return {problem.path: problem.code for problem in scope_problems(changes, SCOPE)}


def test_changes_inside_the_scope_are_fine(clone: Path, mirror: Mirror) -> None:
    (clone / "src/a.py").write_text("better\n")
    (clone / "src/new.py").write_text("new\n")
    (clone / "src/b.py").unlink()
    (clone / "lib/one.py").write_text("shared\n")
    assert problems(clone, mirror) == {}


def test_a_renamed_benchmark_file_is_refused_at_both_ends(clone: Path, mirror: Mirror) -> None:
    git(clone, "mv", "bench/run.py", "src/run.py")
    assert problems(clone, mirror) == {"bench/run.py": "OUTSIDE"}
    git(clone, "mv", "src/a.py", "bench/a.py")
    assert problems(clone, mirror) == {"bench/run.py": "OUTSIDE", "bench/a.py": "OUTSIDE"}


def test_a_symlink_inside_the_scope_is_refused(clone: Path, mirror: Mirror) -> None:
    (clone / "src/a.py").unlink()
    (clone / "src/a.py").symlink_to("../bench/run.py")
    (clone / "src/link").symlink_to("/etc/passwd")
    assert problems(clone, mirror) == {"src/a.py": "LINK", "src/link": "LINK"}


def test_the_contract_may_never_change_and_a_neighbour_of_the_scope_is_outside(clone: Path, mirror: Mirror) -> None:
    (clone / ".outerloop.toml").write_text("easier\n")
    (clone / "srcs").mkdir()
    (clone / "srcs/x.py").write_text("x\n")
    (clone / "lib/two.py").write_text("x\n")
    found = problems(clone, mirror)
    assert found == {".outerloop.toml": "CONTRACT", "lib/two.py": "OUTSIDE", "srcs/x.py": "OUTSIDE"}


def test_a_submodule_in_the_scope_is_refused(clone: Path, mirror: Mirror) -> None:
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{head},src/sub")
    git(clone, "commit", "-q", "-m", "sub")
    repo = Repository.open(clone)
    commits = {"base": repo.commit("HEAD~"), "candidate": repo.commit("HEAD")}
    mirror.pin(repo, commits)
    trees = {name: mirror.tree(commit) for name, commit in commits.items()}
    changes = mirror.changes(trees["base"], trees["candidate"])
    assert [p.code for p in scope_problems(changes, SCOPE)] == ["SUBMODULE"]
    assert mirror.unusable_entries(trees["candidate"]) == ["src/sub is a submodule"]


def test_a_git_lfs_pointer_is_named(clone: Path, mirror: Mirror) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    (clone / "src/model.bin").write_text(pointer)
    (clone / "src/talks.md").write_text("about\n" + pointer)
    repo = Repository.open(clone)
    sealed = repo.seal_worktree()
    mirror.pin(repo, {"c": sealed})
    assert [p.split(" ")[0] for p in mirror.unusable_entries(mirror.tree(sealed))] == ["src/model.bin"]


def test_names_that_git_would_quote_survive(clone: Path, mirror: Mirror) -> None:
    for name in ('we "quote"', "new\nline", "tab\tbed", "ünïcode", "-dash"):
        (clone / name).write_text("x")
    found = problems(clone, mirror)
    assert set(found) == {'we "quote"', "new\nline", "tab\tbed", "ünïcode", "-dash"}


def test_sealing_leaves_index_branch_and_head_alone_and_skips_ignored_files(clone: Path) -> None:
    (clone / ".gitignore").write_text("junk/\n")
    git(clone, "add", ".gitignore")
    git(clone, "commit", "-q", "-m", "ignore")
    (clone / "junk").mkdir()
    (clone / "junk/x").write_text("x")
    (clone / "src/a.py").write_text("staged\n")
    git(clone, "add", "src/a.py")
    (clone / "src/a.py").write_text("unstaged\n")
    (clone / "src/untracked.py").write_text("new\n")
    index = (clone / ".git/index").read_bytes()
    before = git(clone, "status", "--porcelain"), git(clone, "rev-parse", "HEAD", "main")
    repo = Repository.open(clone)
    sealed = repo.seal_worktree()
    assert repo.seal_worktree() == sealed, "the same tree is the same commit"
    assert (clone / ".git/index").read_bytes() == index
    assert (git(clone, "status", "--porcelain"), git(clone, "rev-parse", "HEAD", "main")) == before
    assert git(clone, "show", f"{sealed}:src/a.py") == "unstaged"
    names = git(clone, "ls-tree", "-r", "--name-only", sealed).splitlines()
    assert "src/untracked.py" in names and "junk/x" not in names


def test_a_clean_worktree_is_head_itself(clone: Path) -> None:
    repo = Repository.open(clone)
    assert repo.seal_worktree() == repo.commit("HEAD")


def test_every_clone_of_a_target_has_its_identity(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(clone), "other")
    (clone / "src/a.py").write_text("x\n")
    git(clone, "commit", "-qam", "more")
    assert Repository.open(tmp_path / "other").identity == Repository.open(clone / "src").identity


def test_mistakes_are_named(clone: Path, tmp_path: Path) -> None:
    git(clone, "branch", "improve")
    with pytest.raises(GitError, match="did you mean improve"):
        Repository.open(clone).commit("imrpove")
    with pytest.raises(GitError, match="no commit '--help'"):
        Repository.open(clone).commit("--help")
    with pytest.raises(GitError, match="not inside a git repository"):
        Repository.open(tmp_path)
    with pytest.raises(GitError, match="not a folder"):
        Repository.open(tmp_path / "nowhere")
    git(clone, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{clone}", "shallow")
    with pytest.raises(GitError, match="fetch --unshallow"):
        Repository.open(tmp_path / "shallow")


def test_a_pinned_commit_outlives_the_clone(clone: Path, mirror: Mirror) -> None:
    repo = Repository.open(clone)
    commit = repo.commit("HEAD")
    mirror.pin(repo, {f"commits/{commit}": commit})
    subprocess.run(["rm", "-rf", str(clone)], check=True)
    subprocess.run(["git", "gc", "-q", "--prune=now"], cwd=mirror.path, check=True)
    assert mirror.has(commit)
    assert mirror.blob(mirror.tree(commit), "src/a.py", limit=10_000)
    with pytest.raises(GitError, match="at most 10 are read"):
        mirror.blob(mirror.tree(commit), "src/a.py", limit=10)


def test_the_callers_git_settings_do_not_leak_in(clone: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent/index")
    hook = clone / ".git/hooks/pre-push"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    repo = Repository.open(clone)
    mirror.pin(repo, {"c": repo.commit("main")})
    assert mirror.has(repo.commit("main"))


def test_a_subset_tree_depends_on_its_files_alone(clone: Path, mirror: Mirror) -> None:
    repo = Repository.open(clone)
    first = repo.commit("HEAD")
    (clone / "src/b.py").write_text("other\n")
    second = repo.seal_worktree()
    mirror.pin(repo, {"a": first, "b": second})
    one, missing = mirror.subset_tree(mirror.tree(first), ["src/a.py", "nope.lock"])
    two, _ = mirror.subset_tree(mirror.tree(second), ["src/a.py"])
    assert one == two and missing == ["nope.lock"]


def test_without_a_certain_default_branch_the_base_has_to_be_named(clone: Path) -> None:
    git(clone, "branch", "-m", "main", "trunk")
    assert Repository.open(clone).default_branch() == "trunk", "the only branch is the default one"
    git(clone, "branch", "feature")
    with pytest.raises(GitError, match=r"no default branch .* --base \(branches: feature, trunk\)"):
        Repository.open(clone).default_branch()
    git(clone, "branch", "master")
    assert Repository.open(clone).default_branch() == "master"


def test_a_branch_without_a_commit_is_said_in_words(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q", "-b", "main")
    with pytest.raises(GitError, match="branch main has no commit yet"):
        Repository.open(empty)


def test_an_orphan_branch_beside_others_is_said_in_words(clone: Path) -> None:
    git(clone, "checkout", "-q", "--orphan", "fresh")
    with pytest.raises(GitError, match="branch fresh has no commit yet"):
        Repository.open(clone)


@pytest.mark.parametrize("how", ["merge", "rebase", "cherry-pick"])
def test_a_tree_in_the_middle_of_a_conflict_is_no_candidate(clone: Path, how: str) -> None:
    git(clone, "checkout", "-q", "-b", "other")
    (clone / "src/a.py").write_text("theirs\n")
    git(clone, "commit", "-q", "-a", "-m", "theirs")
    git(clone, "checkout", "-q", "main")
    (clone / "src/a.py").write_text("ours\n")
    git(clone, "commit", "-q", "-a", "-m", "ours")
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, how, "other")
    with pytest.raises(GitError, match=r"unresolved conflicts \(src/a.py\)"):
        Repository.open(clone).seal_worktree()
    (clone / "src/a.py").write_text("both\n")
    git(clone, "add", "src/a.py")
    assert Repository.open(clone).seal_worktree()


def test_a_contract_that_never_reached_the_remote_is_told_with_what_to_do(clone: Path, tmp_path: Path) -> None:
    """The first climb of somebody who committed the contract in a clone and did not push."""
    git(clone, "rm", "--quiet", "--cached", "--ignore-unmatch", CONTRACT_FILE)
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "no contract")
    mine = tmp_path / "mine"
    git(tmp_path, "clone", "--quiet", str(clone), str(mine))
    settings, root = Settings(state=tmp_path / "state", backend="local"), StateRoot(tmp_path / "state")

    def ask() -> None:
        prepare_climb(settings, root, repository=mine, benchmark="speed", base=None, candidate="worktree")

    with pytest.raises(ContractGone, match=r"has no \.outerloop\.toml; write one with"):
        ask()
    (mine / CONTRACT_FILE).write_text("[[benchmarks]]\n")
    git(mine, "add", CONTRACT_FILE)
    git(mine, "commit", "--quiet", "--message", "contract")
    with pytest.raises(ContractGone, match=r"^origin/main has no .* yet and HEAD has: .*push.*--base HEAD"):
        ask()
