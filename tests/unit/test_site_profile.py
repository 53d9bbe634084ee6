"""Attacks site profiles: where they are found, what wins over them, and what a bad one says."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from outerloop.settings import Settings, SettingsError
from outerloop.site_profile import SHIPPED, SiteProfile, merged, profile_text


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("OUTERLOOP_"):
            monkeypatch.delenv(name)
    path = tmp_path / "config.toml"
    path.write_text(f'state = "{tmp_path}/state"\n[lanes.gpu]\npartition = "gpu"\n[slurm]\nuser = "ada"\n')
    return path


def test_a_profile_beside_the_config_lies_below_it_key_by_key(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config.parent / "site.toml").write_text(
        '[site]\nname = "x"\n[lanes.gpu]\npartition = "never"\ngpu_flag = "gres"\n[lanes.wake]\nqos = "short"\n'
        '[slurm]\nuser = "bob"\naccounting = "off"\n'
    )
    settings = Settings.load(config)
    assert (settings.lanes["gpu"].partition, settings.lanes["gpu"].gpu_flag) == ("gpu", "gres")
    assert settings.lanes["wake"].qos == "short"
    assert (settings.slurm.user, settings.slurm.accounting) == ("ada", "off")
    monkeypatch.setenv("OUTERLOOP_LANES__GPU__GPU_FLAG", "none")
    assert Settings.load(config).lanes["gpu"].gpu_flag == "none"


def test_without_a_profile_nothing_changes(config: Path) -> None:
    assert Settings.load(config).lanes["gpu"].gpu_flag == "gpus-per-node"


@pytest.mark.parametrize("named", ["devcluster", "ABSOLUTE", "shared/site.toml"])
def test_a_profile_is_found_by_name_and_by_path(named: str, config: Path) -> None:
    other = config.parent / "shared" / "site.toml"
    other.parent.mkdir()
    other.write_text('[lanes.wake]\nqos = "q"\n')
    site = str(other) if named == "ABSOLUTE" else named
    config.write_text(f'site = "{site}"\n' + config.read_text())
    settings = Settings.load(config)
    assert ("default" in settings.lanes) if named == "devcluster" else (settings.lanes["wake"].qos == "q")


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ('[lanes.gpu]\ngpu_flg = "gres"\n', 2, "gpu_flag"),
        ('[lanes.gpu]\ngpu_flag = "gras"\n', 2, "gres"),
        ('\n[slurm]\njob_name = "mine"\n', 3, "{name}"),
        ('state = "/x"\n', 1, "unknown key"),
        ("[site]\nmax_array_size = -1\n", 2, "0"),
        ("[lanes.gpu\n", 1, ""),
    ],
)
def test_a_bad_profile_is_named_with_its_line(text: str, line: int, told: str, config: Path) -> None:
    path = config.parent / "site.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Settings.load(config)
    said = str(caught.value)
    assert str(path) in said and told in said
    assert caught.value.problems[0].line == line, said


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_named_profile_that_cannot_be_read_is_an_error(content: bytes | None, config: Path) -> None:
    if content is not None:
        (config.parent / "other.toml").write_bytes(content)
    config.write_text('site = "other.toml"\n' + config.read_text())
    with pytest.raises(SettingsError, match=r"other\.toml"):
        Settings.load(config)


def test_every_shipped_profile_is_good() -> None:
    shipped = sorted(SHIPPED.glob("*.toml"))
    assert shipped
    for path in shipped:
        below, problems = SiteProfile.read(path)
        assert problems == [] and below["lanes"], path


def test_what_is_written_reads_back_and_says_what_was_tried() -> None:
    profile = {
        "site": {"cluster": 'a "quoted" name', "accounting": False, "tools_on_nodes": ("sbatch",)},
        "lanes": {"gpu": {"gpu_flag": "gres"}, "empty": {}},
    }
    text = profile_text(profile, {("lanes", "gpu", "gpu_flag"): "--gpus=1: no\n--gres=gpu:1: taken"}, "made\nby a test")
    assert tomllib.loads(text) == {
        "site": {"cluster": 'a "quoted" name', "accounting": False, "tools_on_nodes": ["sbatch"]},
        "lanes": {"gpu": {"gpu_flag": "gres"}},
    }
    assert "# --gpus=1: no\n# --gres=gpu:1: taken\ngpu_flag" in text and text.startswith("# made\n# by a test\n")
    with pytest.raises(ValueError):
        profile_text({"lanes": {"gpu": {"gpu_flag": "gras"}}}, {}, "")


def test_merging_keeps_what_only_one_says() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }
