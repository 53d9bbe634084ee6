"""`python -m outerloop.posttrain.fetch CONFIG.toml --hub DIR`: what a configuration needs of the hub, in one folder.

Covered: model and data sets at 40-hex revisions, checked against the hashes that the hub states, whole or not there,
read-only. It runs once, at submission, with the submitter's token; every later stage is offline and has none. Not
covered: other weights than safetensors and code of a repository: neither is downloaded, because loading it runs it.

    DIR/<organisation>--<name>/<revision>/    the files, and outerloop.json, which names each with size and SHA-256

Exit codes: 0 all there (one JSON object: source -> SHA-256 of its files), 2 something can't be fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from outerloop.posttrain.config import Config
from outerloop.posttrain.store import MANIFEST, digest_of_folder, read_record, seal_checkpoint

__all__ = ["FetchError", "Source", "fetch", "main", "sources_of"]

_REVISION = re.compile(r"[0-9a-f]{40}")
_MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "LICENSE*", "README*")
"""What a model needs: weights, configuration, tokenizer. Neither Python nor pickles."""
_LOCAL = ("builtin:", "file:")
_CHUNK = 1024 * 1024
_ATTEMPTS = 3


class FetchError(ValueError):
    """Something of the hub can't be used. The text says what and why."""


@dataclass(frozen=True)
class Source:
    """One repository at one commit, and which of its files."""

    kind: Literal["model", "dataset"]
    repo_id: str
    revision: str
    files: tuple[str, ...] = ()
    """Empty: all that a model needs."""

    def __str__(self) -> str:
        return f"{self.kind} {self.repo_id}"


def sources_of(config: Config) -> list[Source]:
    """What the configuration takes from the hub. Raises FetchError with a line for each revision that may move."""
    found = [Source("model", config.model.id, config.model.revision)]
    for suite in config.suites:
        found.append(Source("dataset", suite.repo_id, suite.revision, (suite.path,)))
    data = config.train_dataset
    if data.repo_id is not None:
        found.append(Source("dataset", data.repo_id, data.revision or "", (data.path,)))
    whole: dict[tuple[str, str, str], Source] = {}
    for each in found:
        if not each.repo_id.startswith(_LOCAL):
            key = (each.kind, each.repo_id, each.revision)
            before = whole[key].files if key in whole else ()
            whole[key] = Source(each.kind, each.repo_id, each.revision, tuple(dict.fromkeys((*before, *each.files))))
    wrong = [
        f'{each}: revision "{each.revision}" must be the 40 hex digits of a commit; a branch or a tag moves'
        for each in whole.values()
        if not _REVISION.fullmatch(each.revision)
    ]
    if wrong:
        raise FetchError("\n".join(wrong))
    return list(whole.values())


def fetch(
    sources: Iterable[Source],
    hub: Path,
    *,
    endpoint: str | None = None,
    telling: Callable[[Source], None] = lambda source: None,
) -> dict[str, str]:
    """Make sure that each is in the folder; `kind repo@revision` -> SHA-256 of its files.

    A model's is that of store.digest_of_folder; a data set's is over the files that were asked for, whatever else of
    the same commit another configuration has put beside them.

    `telling` hears of each that has to be downloaded. The token is the caller's (HF_TOKEN, or the one that
    huggingface_hub has stored). Raises FetchError.
    """
    found = {}
    for each in sources:
        folder = hub / each.repo_id.replace("/", "--") / each.revision
        if not _holds(folder, each.files):
            telling(each)
            _fetched(each, folder, endpoint)
        found[f"{each}@{each.revision}"] = _digest(folder, each.files)
    return found


def _digest(folder: Path, files: tuple[str, ...]) -> str:
    if not files:
        return digest_of_folder(folder)
    lines = (f"{name}\0{_sha256(folder / name)}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _holds(folder: Path, files: tuple[str, ...]) -> bool:
    """Whether an earlier fetch left these files there, whole. Raises FetchError when they were changed."""
    manifest = read_record(folder / MANIFEST)
    if manifest is None:
        return False
    listed = manifest["files"]
    for name, expected in listed.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            raise FetchError(f"{path} is not what was fetched; remove {folder} and fetch again")
    return all(name in listed for name in files)


def _fetched(source: Source, folder: Path, endpoint: str | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{source.revision}.{secrets.token_hex(4)}"
    try:
        _download(source, partial, endpoint)
        for path in partial.rglob("*"):
            if path.is_file():
                path.chmod(0o444)
        seal_checkpoint(partial)
        if not folder.is_dir():
            # a folder can be moved by its owner only while it can be written
            with contextlib.suppress(FileExistsError):
                partial.rename(folder)
        if not _holds(folder, source.files):
            _added(partial, folder)
        (folder / MANIFEST).chmod(0o444)
        _folders(folder, 0o555)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)


def _added(partial: Path, folder: Path) -> None:
    """Move the files beside those that another configuration needed of the same commit, each at once."""
    _folders(folder, 0o755)
    for path in sorted(partial.rglob("*")):
        name = path.relative_to(partial)
        if path.is_file() and path.name != MANIFEST and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / name)
    seal_checkpoint(folder)


def _folders(folder: Path, mode: int) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(mode)


def _download(source: Source, partial: Path, endpoint: str | None) -> None:
    """All files into `partial`, each with the hash that the hub states for the commit."""
    from httpx import HTTPError  # huggingface_hub's own transport
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(endpoint=endpoint)
    try:
        info = api.repo_info(
            source.repo_id, repo_type=source.kind, revision=source.revision, files_metadata=True, timeout=60
        )
    except HfHubHTTPError as error:
        raise FetchError(_refused(source, error)) from None
    except (HTTPError, OSError, ValueError) as error:
        raise FetchError(f"{source}: the hub can't be reached: {type(error).__name__}") from None
    if info.sha != source.revision:
        raise FetchError(f"{source}: the hub answers with commit {info.sha}, not {source.revision}")
    for sibling in _chosen(source, info.siblings or []):
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                hf_hub_download(
                    source.repo_id,
                    sibling.rfilename,
                    repo_type=source.kind,
                    revision=source.revision,
                    local_dir=partial,
                    endpoint=endpoint,
                    force_download=attempt > 1,
                )
            except LocalEntryNotFoundError as error:
                why = f"the hub can't be reached: {type(error.__cause__ or error).__name__}"
            except HfHubHTTPError as error:
                why = _refused(source, error).removeprefix(f"{source}: ")
                if _status(error) < 500:
                    raise FetchError(f"{source}: {why}") from None
            except (HTTPError, OSError, ValueError) as error:
                why = f"{sibling.rfilename} broke off: {type(error).__name__}"
            else:
                if _as_stated(partial / sibling.rfilename, sibling):
                    break
                why = f"{sibling.rfilename} has another hash than the hub states for the commit"
            if attempt == _ATTEMPTS:
                raise FetchError(f"{source}: {why}")
    # what huggingface_hub notes beside downloads
    shutil.rmtree(partial / ".cache", ignore_errors=True)


def _chosen(source: Source, siblings: list[Any]) -> list[Any]:
    by_name = {sibling.rfilename: sibling for sibling in siblings}
    unsafe = [name for name in by_name if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    if unsafe:
        raise FetchError(f"{source}: the hub names a file outside of its repository: {unsafe[0]}")
    if source.files:
        missing = [name for name in source.files if name not in by_name]
        if missing:
            raise FetchError(f"{source}: there is no file {', '.join(missing)} at {source.revision}")
        return [by_name[name] for name in source.files]
    # weights in folders of their own are other formats of the same model
    chosen = [by_name[name] for name in by_name if "/" not in name and any(fnmatch(name, p) for p in _MODEL_FILES)]
    names = {sibling.rfilename for sibling in chosen}
    if not any(name.endswith(".safetensors") for name in names):
        raise FetchError(f"{source}: it has no safetensors; other weights can run code and are not fetched")
    if "config.json" not in names:
        raise FetchError(f"{source}: it has no config.json")
    return chosen


def _as_stated(path: Path, sibling: Any) -> bool:
    """Whether a file is the one of the commit: large ones by SHA-256, others by git's own hash of their content."""
    if sibling.size is not None and path.stat().st_size != sibling.size:
        return False
    if sibling.lfs is not None:
        return bool(_sha256(path) == sibling.lfs.sha256)
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as stream:
        while part := stream.read(_CHUNK):
            digest.update(part)
    return bool(digest.hexdigest() == sibling.blob_id)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _status(error: Any) -> int:
    """HTTP status of an answer; 0 when there was none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _refused(source: Source, error: Any) -> str:
    status = _status(error)
    if status in (401, 403):
        return (
            f"{source}: the hub refuses it ({status}): it is private or gated, or not there; "
            "HF_TOKEN must be the token of somebody who may read it"
        )
    if status == 404:
        return f"{source}: the hub has no such repository, or it has no commit {source.revision}"
    return f"{source}: the hub answers {status}" if status else f"{source}: {type(error).__name__}"


def main(argv: list[str] | None = None) -> int:
    """Fetch and print the digests; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m outerloop.posttrain.fetch", description="Fetch the model and the data of a configuration."
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml")
    parser.add_argument("--hub", type=Path, required=True, help="folder of pinned downloads")
    given = parser.parse_args(argv)
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from outerloop.posttrain.config import ConfigError, parse_config

    try:
        print(json.dumps(fetch(sources_of(parse_config(given.config)), given.hub), indent=2))
    except (ConfigError, FetchError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
