"""Attacks: that every mistake in config.toml and the environment is reported at once, with its place and a way out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from outerloop.compute.protocol import Lane
from outerloop.settings import (
    LaneError,
    LaneSettings,
    Settings,
    SettingsError,
    choose_lane,
    config_path,
    default_config,
    derive_deployment,
    effective_backend,
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("OUTERLOOP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        Settings.load(path)
    return str(caught.value).replace(str(path), "F").splitlines()


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = Settings.load()
    assert settings.state == tmp_path / "outerloop"
    assert settings.database_url.get_secret_value() == ""
    assert settings.isolation == "none"
    assert settings.dispatch.max_attempts == 3
    assert settings.wake.cap == 20
    assert settings.deployment == derive_deployment(settings.state)
    assert re.fullmatch(r"[a-z0-9]{1,8}", settings.deployment)


def test_the_file_is_found_where_it_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_path() == tmp_path / ".config" / "outerloop" / "config.toml"
    config_path().parent.mkdir(parents=True)
    config_path().write_text('deployment = "home"\n')
    assert Settings.load().deployment == "home"
    other = write(tmp_path, 'deployment = "named"\n')
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(other))
    assert Settings.load().deployment == "named"


def test_a_file_that_was_named_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"no such file.*outerloop init"):
        Settings.load(tmp_path / "absent.toml")
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(SettingsError, match="no such file"):
        Settings.load()


def test_every_mistake_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """state = "relative/path"
databse_url = "x"
backend = slurm
isolation = "brwap"
deployment = "Too long!"
[slurm]
bin_dirr = "/x"
sbatch_timeout_seconds = "soon"
[lanes.default]
partitoin = "a"
extra = ["--constraint=x",
         "--mem-per-cpu=4G"]
max_minutes = -3
[wake]
cap = 1.5
cap = 2
lane = "nowhere"
[lanes.GPU]
""",
    )
    found = problems(path)
    for line, words in {
        1: "state: must be an absolute path",
        2: 'databse_url: unknown key; did you mean "database_url"?',
        3: "backend: not a TOML value; text needs quotes",
        4: 'isolation: must be one of "none", "bwrap", "apptainer"; did you mean "bwrap"?',
        5: "deployment: must be 1 to 8 of [a-z0-9]",
        7: 'slurm.bin_dirr: unknown key; did you mean "bin_dir"?',
        8: "slurm.sbatch_timeout_seconds: should be a valid number",
        10: 'lanes.default.partitoin: unknown key; did you mean "partition"?',
        11: "lanes.default.extra: --mem-per-cpu=4G asks for memory a second time",
        13: "lanes.default.max_minutes: should be greater than 0",
        15: "wake.cap: should be a valid integer",
        16: "wake.cap: given twice (first on line 15)",
        17: 'wake.lane: there is no lane "nowhere"',
        18: "lanes.GPU: a lane's name must be lower case",
    }.items():
        assert any(text.startswith(f"F:{line}: {words}") for text in found), (line, words, found)
    assert len(found) == 14


def test_the_environment_goes_before_the_file_and_arguments_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[lanes.gpu]\npartition = "file"\nqos = "file"\n[slurm]\nuser = "file"\n')
    monkeypatch.setenv("OUTERLOOP_LANES__GPU__PARTITION", "env")
    monkeypatch.setenv("OUTERLOOP_LANES__GPU__EXTRA", "--constraint='a b' --licenses=x")
    monkeypatch.setenv("OUTERLOOP_LANES__GPU__MAX_MINUTES", "90")
    monkeypatch.setenv("OUTERLOOP_SLURM__QUERY_TIMEOUT_SECONDS", "5")
    monkeypatch.setenv("OUTERLOOP_STATE", "~/elsewhere")
    monkeypatch.setenv("OUTERLOOP_DEPLOYMENT", "")  # empty is unset
    settings = Settings.load(path)
    assert settings.lanes["gpu"].partition == "env"
    assert settings.lanes["gpu"].qos == "file"
    assert settings.lanes["gpu"].extra == ("--constraint=a b", "--licenses=x")
    assert settings.lanes["gpu"].max_minutes == 90
    assert settings.slurm.query_timeout_seconds == 5
    assert settings.slurm.user == "file"
    assert settings.state == tmp_path / "elsewhere"
    assert Settings(state=tmp_path / "argument").state == tmp_path / "argument"


def test_a_mistake_in_the_environment_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTERLOOP_BACKEND", "slrum")
    monkeypatch.setenv("OUTERLOOP_LANES__GPU__PARTITOIN", "x")
    monkeypatch.setenv("OUTERLOOP_WAKE__CAP", "many")
    monkeypatch.setenv("OUTERLOOP_DATABASEURL", "x")
    found = "\n".join(problems(write(tmp_path, "")))
    assert "did you mean \"slurm\"? (it is 'slrum') [environment variable OUTERLOOP_BACKEND]" in found
    assert 'did you mean "partition"? [environment variable OUTERLOOP_LANES__GPU__PARTITOIN]' in found
    assert "[environment variable OUTERLOOP_WAKE__CAP]" in found
    assert "OUTERLOOP_DATABASEURL names no setting; did you mean OUTERLOOP_DATABASE_URL?" in found


def test_variables_that_jobs_and_tests_have_are_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENV", "CKPT_DIR", "OUTPUT_DIR", "LOCAL_JOB_ID", "FAULT", "TEST_PG_FAST"):
        monkeypatch.setenv(f"OUTERLOOP_{name}", "1")
    Settings.load(write(tmp_path, ""))


@pytest.mark.parametrize("where", ["file", "environment"])
@pytest.mark.parametrize("url", ["mysql://me:topsecret@h/x", "topsecret", "postgresql+asyncpg://me:topsecret@h/x"])
def test_a_refused_database_url_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, url: str
) -> None:
    if where == "environment":
        monkeypatch.setenv("OUTERLOOP_DATABASE_URL", url)
    path = write(tmp_path, f'database_url = "{url}"\n' if where == "file" else "")
    found = "\n".join(problems(path))
    assert "database_url" in found
    assert "postgresql://" in found
    assert "topsecret" not in found


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_the_database_url_gets_our_driver_and_stays_secret(tmp_path: Path, scheme: str) -> None:
    settings = Settings.load(write(tmp_path, f'database_url = "{scheme}://me:topsecret@h/x"\n'))
    assert settings.database_url.get_secret_value() == "postgresql+psycopg://me:topsecret@h/x"
    assert "topsecret" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"# ok\n\xff", ":2: is not UTF-8"),
        (b"#" * (1 << 20) + b"\n\n", "larger than"),
        (b"state = 'x", ":1:"),
    ],
)
def test_a_file_that_is_no_text_or_no_toml_is_said_to_be_so(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    assert words in "\n".join(problems(path))


def test_a_folder_in_place_of_the_file_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    assert "can't be read: Is a directory" in problems(tmp_path / "config.toml")[0]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--account=x", "a setting of its own: account"),
        ("-pgpu", "a setting of its own: partition"),
        ("--part=gpu", "a setting of its own: partition"),
        ("--mem=4G", "second time"),
        ("--gres=gpu:1", "second time"),
        ("-G2", "second time"),
        ("--dependency=afterok:1", "set by outerloop"),
        ("--wrap=x", "set by outerloop"),
        ("-t5", "set by outerloop"),
        ("--expo=NONE", "set by outerloop"),
        ("", "non-empty line"),
    ],
)
def test_a_lanes_extra_options_may_not_contradict_what_we_set(option: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LaneSettings(extra=(option,))


def test_harmless_extra_options_pass_and_flags_set_to_none_free_their_options() -> None:
    LaneSettings(extra=("--constraint=a100", "-C", "--exclusive", "--time-min=5", "--nodelist=n1", "--licenses=x"))
    LaneSettings(memory_flag="none", extra=("--mem=4G",))
    LaneSettings(gpu_flag="none", extra=("--gres=gpu:1",))


def slurm(**lanes: LaneSettings) -> Settings:
    return Settings(backend="slurm", state=Path("/s"), lanes=lanes)


def test_a_lane_is_what_the_benchmark_says_else_gpu_else_default() -> None:
    settings = slurm(
        default=LaneSettings(account="acc"), gpu=LaneSettings(partition="g"), big=LaneSettings(account="own")
    )
    assert choose_lane(settings, "", 0)[0] == "default"
    assert choose_lane(settings, "", 2)[0] == "gpu"
    assert choose_lane(settings, "big", 2) == ("big", settings.lanes["big"])
    assert choose_lane(settings, "", 1)[1].account == "acc"
    assert settings.lane("gpu") == Lane(name="gpu", partition="g", account="acc")
    assert settings.lane("big").account == "own"


@pytest.mark.parametrize(
    ("asked", "gpus", "words"),
    [
        ("", 1, r"lanes\.gpu: is not set and the work needs GPUs; add a section \[lanes\.gpu\]"),
        ("bgi", 0, r'lanes\.bgi: is not set and the benchmark asks for it.*did you mean "big"\?'),
        ("", 0, r"lanes\.default: is not set"),
    ],
)
def test_a_missing_lane_is_refused_by_the_name_of_its_setting(asked: str, gpus: int, words: str) -> None:
    with pytest.raises(LaneError, match=words):
        choose_lane(slurm(big=LaneSettings()), asked, gpus)


def test_a_lane_without_a_way_to_ask_for_gpus_takes_no_gpu_work() -> None:
    with pytest.raises(LaneError, match="gpu_flag"):
        choose_lane(slurm(default=LaneSettings(gpu_flag="none")), "default", 1)
    free = LaneSettings(gpu_flag="none", extra=("--gres=gpu:2",))
    assert choose_lane(slurm(default=free), "default", 1)[0] == "default"


def test_the_local_backend_needs_no_lanes() -> None:
    settings = Settings(backend="local", state=Path("/s"))
    assert choose_lane(settings, "", 1) == ("gpu", LaneSettings())
    assert settings.lane("anything") == Lane(name="anything")
    assert settings.wake_lane()[0] == "default"


def test_wake_jobs_have_a_lane_of_their_own_where_there_is_one() -> None:
    assert slurm(default=LaneSettings()).wake_lane()[0] == "default"
    assert slurm(default=LaneSettings(), wake=LaneSettings(partition="w")).wake_lane()[1].partition == "w"


def test_auto_is_slurm_only_where_both_tools_are(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()

    def backend() -> str:
        return effective_backend(Settings.model_validate({"state": "/s", "slurm": {"bin_dir": folder}}))

    assert backend() == "local"
    for tool in ("sbatch", "sinfo"):
        (folder / tool).write_text("#!/bin/sh\n")
        (folder / tool).chmod(0o755)
        assert backend() == ("local" if tool == "sbatch" else "slurm")


def test_derived_deployments_differ_between_state_folders() -> None:
    assert derive_deployment(Path("/a")) != derive_deployment(Path("/b"))
    assert derive_deployment(Path("/a")) == derive_deployment(Path("/a/"))


def test_the_written_file_gives_the_defaults_and_its_comments_are_valid_settings(tmp_path: Path) -> None:
    values = {
        "state": "/scratch/me",
        "deployment": "abc",
        "lanes": {"default": {"partition": "cpu", "extra": ["-C", "a"]}},
    }
    text = default_config(values)
    settings = Settings.load(write(tmp_path, text))
    assert settings == Settings(
        state=Path("/scratch/me"),
        deployment="abc",
        lanes={"default": LaneSettings(partition="cpu", extra=("-C", "a"))},
    )
    # every commented line must be one that a person may uncomment as it is
    uncommented = re.sub(r"^#(?=\w)", "", text, flags=re.MULTILINE)
    for name in ("deployment", "max_minutes", "sbatch_timeout_seconds", "gpu_hours"):
        assert re.search(rf"^{name} = ", uncommented, flags=re.MULTILINE)
    Settings.load(write(tmp_path, uncommented))


def test_the_written_file_without_values_is_all_comments(tmp_path: Path) -> None:
    assert Settings.load(write(tmp_path, default_config())) == Settings()


def test_values_that_the_settings_refuse_are_not_written() -> None:
    with pytest.raises(SettingsError, match="deployment"):
        default_config({"deployment": "Not Good"})


def test_hostile_text_survives_being_written(tmp_path: Path) -> None:
    text = 'module load "x"\n# \\ \t \x7f "" \'\'\' é\n'
    settings = Settings.load(write(tmp_path, default_config({"lanes": {"default": {"prologue": text}}})))
    assert settings.lanes["default"].prologue == text


def test_every_setting_has_a_description() -> None:
    waiting: list[type[BaseModel]] = [Settings, LaneSettings]
    while waiting:
        model = waiting.pop()
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                waiting.append(field.annotation)
