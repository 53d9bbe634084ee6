"""The configuration of one pipeline run, as a model: `outerloop compose render` writes it.

Covered: every table, checked together, each problem with its line. Not covered: fragments (compose/), and whether
files and models are there (the stages say so).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from outerloop.posttrain import builtin
from outerloop.posttrain.scorers import SCORERS, why_no_scorer
from outerloop.problems import Problem, render, suggestion, translate
from outerloop.toml_model import model_of

__all__ = ["Config", "ConfigError", "Engine", "Suite", "config_problems", "parse_config", "parse_config_text"]

Engine = Literal["transformers", "vllm"]
"""transformers: generation inside the process, reproducible on one machine. vllm: a server."""


_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_GPUS = r"^(\d+(,\d+)*)?$"


class ConfigError(ValueError):
    """A configuration that can't run. `problems` holds a line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _require_source(key: str, source: str, what: str, made: tuple[str, ...]) -> None:
    """Raise ValueError where the scheme of a source, or what is to be made on the spot, is not known."""
    scheme, colon, name = source.partition(":")
    if scheme == "builtin" and name not in made:
        raise ValueError(f"{key}: there is no built-in {what} {name!r}; {suggestion(name, made)}")
    if colon and scheme not in {"builtin", "file"}:
        raise ValueError(f"{key}: {source} begins with neither builtin: nor file:, and no hub id has :")


class Model(_Table):
    """What is trained: `builtin:NAME`, `file:/FOLDER`, or a hub id at a 40-hex revision."""

    id: str = Field(min_length=1, description="`builtin:NAME`, `file:/FOLDER` or a hub id.")
    revision: str = Field(min_length=1, description="For a hub id: the 40 hex digits of a commit.")

    @model_validator(mode="after")
    def _made(self) -> Model:
        _require_source("id", self.id, "model", builtin.MODELS)
        return self


class TrainData(_Table):
    """The submission. Without repo_id, `path` is a file, relative to the configuration's folder."""

    path: str = Field(min_length=1, description="File, relative to the configuration's folder, or in the repository.")
    repo_id: str | None = Field(default=None, description="Dataset on the hub. Unset: `path` is a file.")
    revision: str | None = Field(default=None, description="Commit of the dataset.")


class Suite(_Table):
    """One held-out suite. Fields of a row are found by name; a row without `id_field` is named by its number."""

    name: str = Field(default="", pattern=r"^[^/\\]*$", description="Empty where there is only one.")
    repo_id: str = Field(description="`builtin:NAME`, `file:/FOLDER` or a dataset on the hub.")
    revision: str = Field(description="Commit of the dataset.")
    path: str = Field(description="File in it.")
    task_list: str = Field(description="List of the tasks that count.")
    id_field: str = Field(default="id", description="Field that names a row.")
    prompt_field: str = Field(default="prompt", description="Field of the prompt.")
    answer_field: str = Field(default="answer", description="Field of the answer.")
    answer_pattern: str | None = Field(default=None, description="Regular expression whose group 1 is the answer.")
    instruction: str | None = Field(default=None, description="Goes below every prompt.")
    scorer: str = Field(default="exact", description="How an answer is judged.")

    @property
    def label(self) -> str:
        """What its results are called: the name, or that of its task list."""
        return self.name or Path(self.task_list).stem

    @model_validator(mode="after")
    def _known(self) -> Suite:
        _require_source("repo_id", self.repo_id, "suite", builtin.SUITES)
        why = why_no_scorer(self.scorer)
        if why:
            raise ValueError(f"scorer: {why}")
        return self


class Runtime(_Table):
    """What all stages share. dtype follows from `weights`: the design's table, which the planner uses too."""

    weights: Literal["full", "lora", "qlora"] = Field(
        default="full", description="What is trained: all weights, adapters, or adapters over 4 bits."
    )
    lora_r: int = Field(default=16, ge=1, description="Rank of the adapters.")
    lora_alpha: int = Field(default=32, ge=1, description="Their scale is this, over the rank.")
    max_length: int = Field(default=1024, ge=2, description="Tokens of a training row.")
    max_completion_length: int = Field(default=256, ge=1, description="Tokens that are generated at most.")
    gradient_checkpointing: bool = Field(default=False, description="Less memory for more time.")
    isolation: Literal["none", "bwrap"] = Field(default="none", description="Sandbox around code that is run to score.")


class _Training(_Table):
    max_steps: int = Field(ge=1, description="Optimizer steps.")
    per_device_train_batch_size: int = Field(default=8, ge=1, description="Rows of a micro-step on one GPU.")
    gradient_accumulation_steps: int = Field(default=1, ge=1, description="Micro-steps of an optimizer step.")
    learning_rate: float = Field(gt=0, description="Peak learning rate.")
    lr_scheduler_type: str = Field(default="linear", description="Its schedule, as transformers names it.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps of the warm-up.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Norm at which gradients are cut.")
    save_steps: int = Field(default=50, ge=1, description="Optimizer steps between checkpoints.")


class Sft(_Training):
    packing: bool = Field(default=False, description="Several rows in one sequence.")
    completion_only_loss: bool = Field(default=True, description="Whether the prompt has no loss.")


class Dpo(_Training):
    beta: float = Field(default=0.1, gt=0, description="Strength of the pull to the reference.")


class Grpo(_Training):
    engine: Engine = Field(default="transformers", description="What generates.")
    num_generations: int = Field(default=8, ge=2, description="Completions of one prompt.")
    generation_batch_size: int = Field(ge=2, description="Completions that are generated together.")
    num_iterations: int = Field(default=1, ge=1, description="Passes over each generated batch.")
    beta: float = Field(default=0.0, ge=0, description="Strength of the pull to the reference; 0: there is none.")
    temperature: float = Field(default=1.0, gt=0, description="Of the sampling.")
    loss_type: str = Field(default="dapo", description="trl's loss type.")
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group", description="Over what advantages are scaled."
    )
    rewards: tuple[str, ...] = Field(min_length=1, strict=False, description="Scorers whose sum is the reward.")

    def steps_per_boundary(self, processes: int = 1) -> int:
        """Optimizer steps from one generation to the next; a checkpoint in between could not be resumed bit-equal.

        steps_per_generation × num_iterations / accumulation, in trl's words; its processes share a generation.
        """
        micro = self.generation_batch_size // (self.per_device_train_batch_size * processes)
        return max(1, micro * self.num_iterations // self.gradient_accumulation_steps)

    def problems(self, processes: int = 1) -> list[str]:
        """What of the batch's figures does not fit together on so many trainer processes."""
        shared = self.per_device_train_batch_size * processes
        of_all = f" × {processes} trainer GPUs" if processes > 1 else ""
        if self.generation_batch_size % shared:
            return [
                f"generation_batch_size = {self.generation_batch_size} is no multiple of"
                f" per_device_train_batch_size = {self.per_device_train_batch_size}{of_all}"
            ]
        micro = self.generation_batch_size // shared * self.num_iterations
        if micro % self.gradient_accumulation_steps and self.gradient_accumulation_steps % micro:
            return [
                f"gradient_accumulation_steps = {self.gradient_accumulation_steps} and the {micro} micro-batches"
                f" of a generation{' on each GPU' if processes > 1 else ''} do not divide each other"
            ]
        steps = self.steps_per_boundary(processes)
        if self.save_steps % steps:
            return [
                f"save_steps = {self.save_steps} is no multiple of {steps}, the steps between"
                " two generations: a checkpoint in between could not be resumed exactly"
            ]
        return []

    @model_validator(mode="after")
    def _fits(self) -> Grpo:
        problems = []
        for name in self.rewards:
            why = why_no_scorer(name)
            if why:
                problems.append(f"rewards: {why}")
        if self.generation_batch_size % self.num_generations:
            problems.append(
                f"generation_batch_size = {self.generation_batch_size} is no multiple of"
                f" num_generations = {self.num_generations}"
            )
        problems += self.problems()
        if problems:
            raise ValueError("; ".join(problems))
        return self


class Evaluation(_Table):
    engine: Engine = Field(default="transformers", description="What generates.")
    trials: int = Field(default=1, ge=1, le=1000, description="Trials of a task.")
    temperature: float = Field(default=0.0, ge=0, description="Of the sampling; 0: greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Of the sampling.")
    batch_size: int = Field(default=32, ge=1, description="Prompts that are generated together.")


class Serving(_Table):
    """How the model is served where an engine is vllm. A challenge's `[compute.layout]` gives the first four."""

    mode: Literal["server", "colocate"] = Field(
        default="server", description="server: GPUs of its own. colocate: inside the trainer's process, on its GPUs."
    )
    vllm_gpus: str = Field(default="", pattern=_GPUS, description="Indices among the visible GPUs; empty: all.")
    trainer_gpus: str = Field(
        default="",
        pattern=_GPUS,
        description="Those of the trainer, a process for each; empty: one process on the first.",
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that one copy of the model is spread over.")
    max_model_len: int | None = Field(default=None, ge=2, description="Tokens of prompt and completion together.")
    dtype: Literal["model", "float32", "bfloat16", "float16"] = Field(
        default="model", description="model: what its weights are saved in."
    )
    max_num_seqs: int = Field(default=64, ge=1, description="Requests that are generated at the same time.")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Share of a GPU's memory it takes.")
    colocate_memory_utilization: float = Field(default=0.3, gt=0, le=1, description="The same inside a trainer.")
    enforce_eager: bool = Field(default=False, description="Starts sooner, without CUDA graphs.")
    cpu_kv_cache_gb: int = Field(default=4, ge=1, description="GiB of the cache on a CPU.")
    cpu_kv_cache_blocks: int | None = Field(default=None, ge=1, description="Its blocks; for tests.")
    tool_call_parser: str = Field(default="", description="vLLM's parser of tool calls, such as hermes.")
    start_timeout_sec: float = Field(default=900.0, gt=0, description="Seconds in which it must be ready.")
    request_timeout_sec: float = Field(default=600.0, gt=0, description="Seconds in which it must answer.")


class Harness(_Table):
    engine: Literal["direct", "inspect"] = Field(
        default="direct", description="direct: one question, one answer. inspect: a conversation with tools."
    )
    tools: tuple[str, ...] = Field(
        default=(), strict=False, description='Of a conversation: "calculator", or "module:function" of the method.'
    )
    max_turns: int = Field(default=20, ge=1, description="Turns of a conversation; one that needs more is wrong.")
    agent_timeout_sec: float | None = Field(default=None, gt=0, description="An agent that takes longer is wrong.")
    max_infra_error_fraction: float = Field(
        default=0.1, ge=0, le=1, description="Largest share of trials that infrastructure may end."
    )
    retries: int = Field(default=2, ge=0, le=10, description="Tries of a trial that infrastructure ended, besides one.")


class Tracking(_Table):
    project: str = Field(default="", description="Name that reporters are given.")
    report_to: tuple[str, ...] = Field(default=(), strict=False, description="trl's reporters; none by default.")


class Output(_Table):
    root: str = Field(default="../../runs", description="Folder of the results, relative to the configuration's.")


class Config(_Table):
    """The whole configuration."""

    model: Model = Field(description="What is trained.")
    train_dataset: TrainData = Field(description="The submission.")
    eval_dataset: Suite | None = Field(default=None, description="The one held-out suite.")
    eval_suites: tuple[Suite, ...] = Field(default=(), description="The held-out suites, if there are several.")
    runtime: Runtime = Field(default=Runtime(), description="What all stages share.")
    sft: Sft | None = Field(default=None, description="Supervised fine-tuning.")
    grpo: Grpo | None = Field(default=None, description="Reinforcement with a group baseline.")
    dpo: Dpo | None = Field(default=None, description="Preferences.")
    evaluation: Evaluation = Field(default=Evaluation(), description="How suites are scored.")
    harness: Harness = Field(default=Harness(), description="Limits and retries of trials.")
    serving: Serving = Field(default=Serving(), description="The vLLM server, where an engine is vllm.")
    tracking: Tracking = Field(default=Tracking(), description="Reporters.")
    output: Output = Field(default=Output(), description="Where results go.")

    @property
    def suites(self) -> tuple[Suite, ...]:
        """The held-out suites, one or several."""
        return (self.eval_dataset,) if self.eval_dataset is not None else self.eval_suites

    @property
    def processes(self) -> int:
        """Trainer processes: one for each of the trainer's GPUs."""
        return len(self.serving.trainer_gpus.split(","))

    @property
    def stages(self) -> tuple[str, ...]:
        """The training stages in the order in which they run."""
        return tuple(name for name in ("sft", "dpo", "grpo") if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _whole(self) -> Config:
        problems = []
        if not self.stages:
            problems.append("nothing is trained: give [sft], [dpo] or [grpo]")
        if (self.eval_dataset is None) == (not self.eval_suites):
            problems.append("give either [eval_dataset] or [[eval_suites]]")
        names = [suite.label for suite in self.suites]
        if len(set(names)) != len(names):
            problems.append("two suites have one name")
        if self.harness.engine == "inspect" and self.evaluation.engine != "vllm":
            problems.append('harness.engine = "inspect" needs a server: evaluation.engine = "vllm"')
        if self.harness.engine != "inspect" and self.harness.tools:
            problems.append('harness.tools are for conversations: harness.engine = "inspect"')
        problems += [
            f'harness.tools: there is no tool "{name}"; calculator, or module:function'
            for name in self.harness.tools
            if name != "calculator" and not _ENTRY_POINT.fullmatch(name)
        ]
        serving = self.serving
        if serving.mode == "colocate" and serving.vllm_gpus != serving.trainer_gpus:
            problems.append("serving: colocated, vllm_gpus and trainer_gpus are the same")
        if self.grpo is not None and self.processes > 1:
            problems += [f"grpo: {text}" for text in self.grpo.problems(self.processes)]
            if self.grpo.engine == "vllm" and serving.mode == "server":
                problems.append(
                    f"grpo: {self.processes} trainer GPUs ({serving.trainer_gpus}), but a vLLM server of its own takes"
                    ' the weights of one trainer process: give one GPU, or serving.mode = "colocate"'
                )
        runs_code = [suite.label for suite in self.suites if SCORERS.get(suite.scorer) == "code"]
        runs_code += [name for name in (self.grpo.rewards if self.grpo else ()) if SCORERS.get(name) == "code"]
        if runs_code and self.runtime.isolation == "none":
            problems.append(
                f"{', '.join(runs_code)} runs code that was submitted or generated: that needs a sandbox,"
                ' runtime.isolation = "bwrap"'
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with a composed configuration; the shape that `outerloop compose check` asks for."""
    try:
        Config.model_validate(config)
    except ValidationError as error:
        found = [translate(item, Config) for item in error.errors()]
        return [Problem(0, key, message).text("the composed configuration") for key, message in found]
    return []


def parse_config(path: Path) -> Config:
    """The configuration in a file. Raises ConfigError with a line per problem: file, line, key; OSError."""
    return parse_config_text(path.read_bytes(), str(path))


def parse_config_text(text: str | bytes, source: str) -> Config:
    """The configuration in a text. Raises ConfigError with a line per problem: source, line, key."""
    found, problems = model_of(Config, text.encode() if isinstance(text, str) else text)
    if found is not None:
        return found
    raise ConfigError(render(source, problems).split("\n"))
