"""Attacks: branches, moved commits, pickles, cut and changed downloads, a hub that refuses, files outside."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outerloop.compose import ComposeError, compose
from outerloop.controller.submit_entry import _hub_folder
from outerloop.posttrain.config import Config
from outerloop.posttrain.fetch import FetchError, Source, fetch, main, sources_of
from outerloop.posttrain.sources import model_folder
from outerloop.posttrain.store import digest_of_folder

pytest.importorskip("huggingface_hub")

REVISION = "0123456789abcdef0123456789abcdef01234567"
MODEL = {
    "config.json": b'{"model_type": "llama", "auto_map": {"AutoModel": "modeling.Own"}}',
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "modeling.py": b"raise SystemExit('ran')",
    "pytorch_model.bin": b"pickle",
    "onnx/model.safetensors": b"another format",
}
DATA = {"main/test.jsonl": b'{"id": "a"}\n', "main/train.jsonl": b'{"id": "b"}\n', "README.md": b"about"}


class Hub:
    """Speaks as much of the hub's API as fetching needs. `fault` says what goes wrong."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {"models/o/m": dict(MODEL), "datasets/o/d": dict(DATA)}
        self.fault = ""
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, with_body=False)

            def do_GET(self) -> None:
                hub.answer(self, with_body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = request.path.partition("?")[0]
        self.tokens.add(request.headers.get("authorization"))
        if self.fault == "401":
            self._send(request, 401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif path.startswith("/api/"):
            self._info(request, path.removeprefix("/api/").partition("/revision/")[0], with_body)
        else:
            self._file(request, path.strip("/"), with_body)

    def _info(self, request: BaseHTTPRequestHandler, repo: str, with_body: bool) -> None:
        files = self.repos.get(repo)
        if files is None or REVISION not in request.path:
            self._send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            return
        siblings = []
        for name, content in files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith((".safetensors", ".bin")):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}
            siblings.append(entry)
        sha = "f" * 40 if self.fault == "moved" else REVISION
        answer = {"id": repo.partition("/")[2], "sha": sha, "siblings": siblings, "tags": [], "private": False}
        self._send(request, 200, json.dumps(answer).encode(), {"content-type": "application/json"}, with_body)

    def _file(self, request: BaseHTTPRequestHandler, path: str, with_body: bool) -> None:
        repo, _, rest = path.partition("/resolve/")
        name = rest.partition("/")[2]
        content = self.repos[repo if repo.startswith("datasets/") else f"models/{repo}"][name]
        if with_body:
            self.asked.append(name)
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if self.fault == "changed" and name == "model.safetensors":
            content = content[:-1] + b"!"
        if self.fault == "changed-small" and name == "config.json":
            content = content.replace(b"llama", b"lxama")
        cut = self.fault == "truncated" and name == "model.safetensors"
        self._send(request, 200, content, headers, with_body, cut=cut)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str],
        with_body: bool,
        *,
        cut: bool = False,
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if with_body:
            request.wfile.write(body[: len(body) // 2] if cut else body)
        request.close_connection = True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    made = Hub()
    yield made
    made.close()


def configured(**model: str) -> Config:
    config = compose("tiny-llama", "tiny-sft", ["tiny-sums"], "train.jsonl", project="p")
    config["model"] = {"id": "o/m", "revision": REVISION, **model}
    config["eval_dataset"] |= {"repo_id": "o/d", "revision": REVISION, "path": "main/test.jsonl"}
    return Config.model_validate(config)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_fetched_is_whole_read_only_and_without_code(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    config = configured()
    found = fetch(sources_of(config), tmp_path, endpoint=hub.endpoint)
    model, data = tmp_path / "o--m" / REVISION, tmp_path / "o--d" / REVISION
    assert files(model) == ["config.json", "model.safetensors", "outerloop.json", "tokenizer.json"]
    assert files(data) == ["main/test.jsonl", "outerloop.json"]
    assert found[f"model o/m@{REVISION}"] == digest_of_folder(model) and len(found) == 2
    assert (model / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    for path in [model, data, *model.rglob("*"), *data.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o222, path
    assert hub.tokens == {"Bearer hf_secret"}
    assert not any(b"hf_secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    # later stages need neither hub nor token
    assert model_folder(config, work=tmp_path / "work", hub=tmp_path) == model
    hub.asked.clear()
    assert fetch(sources_of(config), tmp_path, endpoint="http://127.0.0.1:9") == found
    assert hub.asked == []


def test_a_further_file_of_the_same_commit_leaves_the_digest_of_the_first(hub: Hub, tmp_path: Path) -> None:
    first = fetch([Source("dataset", "o/d", REVISION, ("main/test.jsonl",))], tmp_path, endpoint=hub.endpoint)
    second = fetch([Source("dataset", "o/d", REVISION, ("main/train.jsonl",))], tmp_path, endpoint=hub.endpoint)
    assert first != second
    folder = tmp_path / "o--d" / REVISION
    assert files(folder) == ["main/test.jsonl", "main/train.jsonl", "outerloop.json"]
    assert fetch([Source("dataset", "o/d", REVISION, ("main/test.jsonl",))], tmp_path, endpoint="http://x") == first
    assert [path.name for path in folder.parent.iterdir()] == [REVISION]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("moved", f"model o/m: the hub answers with commit {'f' * 40}, not {REVISION}"),
        ("401", "model o/m: the hub refuses it (401): it is private or gated, or not there; HF_TOKEN must be"),
        ("truncated", "model o/m: model.safetensors broke off: "),
        ("changed", "model o/m: model.safetensors has another hash than the hub states for the commit"),
        ("changed-small", "model o/m: config.json has another hash than the hub states for the commit"),
    ],
)
def test_what_is_not_the_commit_is_not_kept(hub: Hub, tmp_path: Path, fault: str, message: str) -> None:
    hub.fault = fault
    with pytest.raises(FetchError) as caught:
        fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)
    assert str(caught.value).startswith(message)
    assert files(tmp_path) == []
    hub.fault = ""
    fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)


def test_what_can_run_code_or_leaves_the_folder_is_refused(hub: Hub, tmp_path: Path) -> None:
    whole = hub.repos["models/o/m"]
    del whole["model.safetensors"]
    with pytest.raises(FetchError, match="it has no safetensors; other weights can run code"):
        fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)
    whole["../model.safetensors"] = b"outside"
    with pytest.raises(FetchError, match=r"names a file outside of its repository: \.\./model"):
        fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)
    with pytest.raises(FetchError, match=r"there is no file absent\.jsonl at"):
        fetch([Source("dataset", "o/d", REVISION, ("absent.jsonl",))], tmp_path, endpoint=hub.endpoint)
    with pytest.raises(FetchError, match="no such repository, or it has no commit"):
        fetch([Source("model", "o/other", REVISION)], tmp_path, endpoint=hub.endpoint)
    assert hub.asked == [] and files(tmp_path) == []


def test_a_hub_that_is_not_there_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="model o/m: the hub can't be reached: "):
        fetch(sources_of(configured()), tmp_path, endpoint="http://127.0.0.1:9")


def test_files_that_were_changed_later_are_not_taken_for_the_commit(hub: Hub, tmp_path: Path) -> None:
    fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)
    weights = tmp_path / "o--m" / REVISION / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"x" * len(MODEL["model.safetensors"]))
    with pytest.raises(FetchError, match=r"model\.safetensors is not what was fetched; remove "):
        fetch(sources_of(configured()), tmp_path, endpoint=hub.endpoint)


def test_a_branch_is_refused_before_the_hub_is_asked(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FetchError) as caught:
        sources_of(configured(revision="main"))
    assert str(caught.value) == (
        'model o/m: revision "main" must be the 40 hex digits of a commit; a branch or a tag moves'
    )
    from outerloop.compose import toml_text

    path = tmp_path / "c.toml"
    config = compose("tiny-llama", "tiny-sft", ["tiny-sums"], "train.jsonl", project="p")
    path.write_text(toml_text({**config, "model": {"id": "o/m", "revision": "v1"}}))
    assert main([str(path), "--hub", str(tmp_path / "hub")]) == 2
    assert 'revision "v1" must be the 40 hex digits' in capsys.readouterr().err
    assert hub.asked == [] and not (tmp_path / "hub").exists()
    # nothing of a configuration that is made on the spot comes from a hub
    path.write_text(toml_text(config))
    assert main([str(path), "--hub", str(tmp_path / "hub")]) == 0
    assert json.loads(capsys.readouterr().out) == {} and files(tmp_path) == ["c.toml"]


def test_submitting_a_revision_that_is_no_commit_is_bad_input_and_asks_no_hub(hub: Hub, tmp_path: Path) -> None:
    fixed: Any = SimpleNamespace(challenge=SimpleNamespace(reserve=()))
    with pytest.raises(ComposeError, match=r'challenge c: model o/m: revision "main" must be the 40 hex digits'):
        _hub_folder(fixed, "c", configured(revision="main"), tmp_path, {}, tmp_path / "hub", lambda source: None)
    assert hub.asked == [] and not (tmp_path / "hub").exists()
