"""The training stages: trl's trainers with our checkpoints, seeds, dtypes and reports.

Covered: sft, dpo, grpo with transformers generation or vLLM; a stop on SIGTERM or SIGUSR1; continuing from the newest
valid checkpoint; being one of several data-parallel processes. Not covered: starting those (ranks.py), several nodes
(the planner's launch specs), a vLLM server's life (serve.py).

A stage that continued ends with the same bytes as one that was never interrupted, on the same torch build, CPU
instruction set, thread and rank count, with transformers generation. A GRPO checkpoint lies between two generations,
where nothing of a generation is in memory only (config.py refuses other save intervals).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from outerloop.posttrain.aloud import AloudReporter
from outerloop.posttrain.config import Config
from outerloop.posttrain.rollouts import Rollouts
from outerloop.posttrain.scorers import ScorerError
from outerloop.posttrain.seeds import stage_seed
from outerloop.posttrain.serve import Server, ServerError, stop_token_ids
from outerloop.posttrain.store import digest_of_folder, newest_valid_checkpoint, publish, read_record, seal_checkpoint
from outerloop.torch import world
from outerloop.torch.facts import Reporter

__all__ = ["DONE", "STOPPED", "StageError", "Stopped", "train"]

DONE = "done.json"
STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: the same command continues."""
KEPT = 2
"""Checkpoints: the newest may be torn."""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_METRICS_FIRST = ("loss", "reward", "reward_std", "kl", "grad_norm", "learning_rate", "entropy", "epoch", "step_time")


class StageError(ValueError):
    """A stage that can't run here. The text says what to change."""


class Stopped(Exception):
    """A signal ended the stage at a checkpoint."""


def train(
    stage: str,
    config: Config,
    rows: Sequence[Mapping[str, Any]],
    base: Path,
    out: Path,
    *,
    seed: int,
    rewards: Sequence[tuple[str, Callable[[str, str], float]]] = (),
    reports: Path | None = None,
    server: Server | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    """Train `base` on `rows` into `out / "model"`, and return the stage's record (`out / "done.json"`).

    Metrics and heartbeats go to `reports`, where it is given, and are said aloud then; else to `out`.

    GRPO generates with `server`, which is started and ended here, or in this process without one. A finished stage is
    not done again; a begun one continues. Raises Stopped after a signal, StageError, ServerError.

    As one of several processes it is told where to `resume`; rank 0 alone writes, and the others return an empty
    record.
    """
    record = read_record(out / DONE)
    if record is not None:
        return record
    out.mkdir(parents=True, exist_ok=True)
    asked: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    reporter = Reporter(out) if reports is None else AloudReporter(reports)
    try:
        with contextlib.ExitStack() as held:
            own = stage_seed(seed, stage)
            rollouts = None if server is None else _rollouts(server, config, out, own, held)
            if world.world_size() == 1:
                resume = newest_valid_checkpoint(out / "checkpoints")
            record = _trained(stage, config, rows, base, out, own, rewards, reporter, asked, rollouts, resume)
        reporter.state = "finished"
    except Stopped:
        reporter.state = "stopped"
        raise
    except ServerError as error:
        reporter.state = "stopped" if asked else "failed"
        if asked:  # a signal to the whole job step reaches the server first
            raise Stopped(f"{asked[0].name} ended {stage} and its server") from error
        if server is not None and str(server.log) not in str(error):
            # one that ends while it is sent weights is a broken connection at first
            raise ServerError(f"{error}; its log: {server.log}") from error
        raise
    except BaseException:
        reporter.state = "failed"
        raise
    finally:
        reporter.beat(now=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    return record


def _rollouts(server: Server, config: Config, out: Path, seed: int, held: contextlib.ExitStack) -> Rollouts:
    """Start the server; it ends, and then its weights are deleted, when `held` is left."""
    assert config.grpo is not None
    rollouts = Rollouts(
        server,
        out / "weights",
        seed=seed,
        temperature=config.grpo.temperature,
        max_tokens=config.runtime.max_completion_length,
        stop_token_ids=stop_token_ids(server.model),
    )
    held.callback(rollouts.close)
    held.enter_context(server)
    return rollouts


def _trained(
    stage: str,
    config: Config,
    rows: Sequence[Mapping[str, Any]],
    base: Path,
    out: Path,
    seed: int,
    rewards: Sequence[tuple[str, Callable[[str, str], float]]],
    reporter: Reporter,
    asked: list[signal.Signals],
    rollouts: Rollouts | None,
    resume: Path | None,
) -> dict[str, Any]:
    import datasets
    import torch
    import transformers
    import trl

    _reporters(config, out)
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    checkpoints = out / "checkpoints"
    table = getattr(config, stage)
    gpu = torch.cuda.is_available()
    reporter.device, reporter.torch_version = ("cuda" if gpu else "cpu"), torch.__version__
    if gpu:
        reporter.device_name = torch.cuda.get_device_name()
        reporter.device_memory = lambda: (
            torch.cuda.max_memory_allocated() / 1e6,
            torch.cuda.max_memory_reserved() / 1e6,
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    if tokenizer.chat_template is None:
        raise StageError(f"{base} has no chat template, and rows are conversations")
    model, peft_config = _model(config, base, gpu=gpu)
    arguments: dict[str, Any] = {
        "output_dir": str(checkpoints),
        "max_steps": table.max_steps,
        "per_device_train_batch_size": table.per_device_train_batch_size,
        "gradient_accumulation_steps": table.gradient_accumulation_steps,
        "learning_rate": table.learning_rate,
        "lr_scheduler_type": table.lr_scheduler_type,
        "warmup_steps": table.warmup_steps,
        "weight_decay": table.weight_decay,
        "max_grad_norm": table.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": table.save_steps,
        "save_total_limit": KEPT,
        "logging_steps": 1,
        "report_to": list(config.tracking.report_to) or "none",
        "run_name": config.tracking.project or None,
        "seed": seed,
        "data_seed": seed,
        "bf16": gpu,
        "use_cpu": not gpu,
        "gradient_checkpointing": config.runtime.gradient_checkpointing,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
    }
    dataset = datasets.Dataset.from_list([dict(row) for row in rows])
    common = {
        "model": model,
        "train_dataset": dataset,
        "processing_class": tokenizer,
        "peft_config": peft_config,
        "callbacks": [_callback(table, stage, reporter, asked, config.processes)],
    }
    if stage == "sft":
        options = trl.SFTConfig(
            **arguments,
            max_length=config.runtime.max_length,
            packing=table.packing,
            completion_only_loss=table.completion_only_loss,
        )
        trainer = trl.SFTTrainer(args=_alone(options), **common)
    elif stage == "dpo":
        options = trl.DPOConfig(**arguments, max_length=config.runtime.max_length, beta=table.beta)
        trainer = trl.DPOTrainer(args=_alone(options), **common)
    else:
        options = trl.GRPOConfig(
            **arguments,
            num_generations=table.num_generations,
            generation_batch_size=table.generation_batch_size,
            num_iterations=table.num_iterations,
            max_completion_length=config.runtime.max_completion_length,
            beta=table.beta,
            temperature=table.temperature,
            loss_type=table.loss_type,
            scale_rewards=table.scale_rewards,
            **_colocated(config, table, gpu=gpu, server=rollouts is not None),
        )
        with warnings.catch_warnings():
            # trl calls rollout_func experimental; the release is pinned
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            functions = [_reward(*pair) for pair in rewards]
            trainer = trl.GRPOTrainer(args=_alone(options), reward_funcs=functions, rollout_func=rollouts, **common)
        if rollouts is not None:
            rollouts.attach(trainer)
    # trl's and transformers' printers and progress bars would repeat metrics.jsonl on stdout
    trainer.remove_callback(transformers.PrinterCallback)
    reporter.start_step = 0
    if resume is not None:
        reporter.restored_step = int(resume.name.removeprefix("checkpoint-"))
        reporter.start_step = reporter.restored_step
    if resume is not None and reporter.start_step >= table.max_steps:
        # killed between the last checkpoint and publication; the trainer would do one step too many
        trainer._load_from_checkpoint(str(resume))
        trainer.state = transformers.TrainerState.load_from_json(str(resume / "trainer_state.json"))
        # train() begins with this, and it decides what the saved configuration says
        transformers.trainer_utils.align_special_tokens(trainer.model, tokenizer)
        reporter.step_ended(reporter.start_step)
    else:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    if trainer.state.global_step < table.max_steps:
        name = asked[0].name if asked else "the trainer"
        raise Stopped(f"{name} ended {stage} after step {trainer.state.global_step} of {table.max_steps}")
    return _finished(stage, config, trainer, tokenizer, out, base, seed)


def _alone(options: Any) -> Any:
    """trl's arguments for one GPU: a process that sees several would be given all, and split each batch over them."""
    if options.n_gpu > 1 and world.world_size() == 1:
        options._n_gpu = 1
    return options


def _reporters(config: Config, out: Path) -> None:
    """Refuse reporters that are not there, and keep TensorBoard's files out of the checkpoints, which are deleted."""
    if not config.tracking.report_to:
        return
    from transformers.integrations import get_available_reporting_integrations

    present = get_available_reporting_integrations()
    missing = [name for name in config.tracking.report_to if name not in present]
    if missing:
        raise StageError(
            f"tracking.report_to: {', '.join(missing)} can't be used here, not installed or unknown; "
            f"there is {', '.join(sorted(present)) or 'none'}"
        )
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(out / "tensorboard"))


def _colocated(config: Config, table: Any, *, gpu: bool, server: bool) -> dict[str, Any]:
    """trl's words for a vLLM inside the trainer's process; it shares the trainer's GPUs."""
    if table.engine != "vllm" or server:
        return {"use_vllm": False}
    if not gpu:
        raise StageError('serving.mode = "colocate" needs a GPU; "server" works on a CPU too')
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_tensor_parallel_size": config.serving.tensor_parallel,
        "vllm_gpu_memory_utilization": config.serving.colocate_memory_utilization,
        "vllm_max_model_length": config.serving.max_model_len,
    }


def _model(config: Config, base: Path, *, gpu: bool) -> tuple[Any, Any]:
    """The model in the dtype of the method, and the adapters' configuration, if it has adapters.

    full: fp32 weights (bf16 autocast on a GPU). LoRA: bf16 base, fp32 adapters; fp32 on a CPU, where bf16 has no speed.
    QLoRA: NF4 with bf16 storage.
    """
    import torch
    import transformers

    weights = config.runtime.weights
    if weights == "qlora" and not gpu:
        raise StageError('runtime.weights = "qlora" needs a GPU: its four-bit kernels have no CPU version')
    dtype = torch.bfloat16 if weights != "full" and gpu else torch.float32
    quantised = None
    if weights == "qlora":
        quantised = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_quant_storage=torch.bfloat16,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        quantization_config=quantised,
    )
    if weights == "full":
        return model, None
    from peft import LoraConfig

    return model, LoraConfig(
        r=config.runtime.lora_r,
        lora_alpha=config.runtime.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _callback(table: Any, stage: str, reporter: Reporter, asked: list[signal.Signals], processes: int) -> Any:
    """What happens between steps: reports, sealed checkpoints, and the stop that a signal asked for."""
    from transformers import TrainerCallback

    boundary = table.steps_per_boundary(processes) if stage == "grpo" else 1

    last_step_ended = time.monotonic()

    class Callback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            reporter.resume_clock()
            reporter.beat(now=True)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            known = dict(logs or {})
            ordered = {name: known.pop(name) for name in _METRICS_FIRST if name in known}
            if "loss" in ordered:
                reporter.log_metrics({"stage": stage, "step": state.global_step, **ordered, **known})

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal last_step_ended
            last_step_ended = time.monotonic()
            reporter.step_ended(state.global_step)
            reporter.beat()
            if state.global_step % boundary == 0 and _anybody(bool(asked), args.device):
                control.should_save = control.should_training_stop = True
            reporter.resume_clock()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if world.world_size() > 1:
                import torch

                torch.distributed.barrier()  # each rank has written its random state
            if world.rank() == 0:
                seal_checkpoint(folder)
            size = sum(path.stat().st_size for path in folder.iterdir())
            reporter.saved(state.global_step, time.monotonic() - last_step_ended, size)
            reporter.resume_clock()

    return Callback()


def _anybody(here: bool, device: Any) -> bool:
    """Whether it is so in any of the processes, which all ask at the same step."""
    if world.world_size() == 1:
        return here
    import torch

    flag = torch.tensor(int(here), device=device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def _reward(name: str, score: Callable[[str, str], float]) -> Callable[..., list[float | None]]:
    """A scorer as trl calls it. None, for a completion that could not be scored, leaves that reward out."""

    def reward(completions: Any, answer: Sequence[str], **kwargs: Any) -> list[float | None]:
        found: list[float | None] = []
        for completion, expected in zip(completions, answer, strict=True):
            text = completion[-1]["content"] if isinstance(completion, list) else completion
            try:
                found.append(score(text, expected))
            except ScorerError:
                found.append(None)
        return found

    reward.__name__ = re.sub(r"\W", "_", name)
    return reward


def _finished(
    stage: str, config: Config, trainer: Any, tokenizer: Any, out: Path, base: Path, seed: int
) -> dict[str, Any]:
    """Save the merged model in one dtype and the stage's record; the checkpoints have done their duty."""
    import torch

    if world.rank() > 0:
        return {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    partial, final = out / ".model.partial", out / "model"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(final, ignore_errors=True)
    if config.runtime.weights != "full":
        model.save_pretrained(out / "adapter")
        quantised = config.runtime.weights == "qlora"
        model = _merged_from(base, out / "adapter") if quantised else model.merge_and_unload()
    # what trl changed for training must not be what the model generates with
    model.save_pretrained(partial, safe_serialization=True)
    tokenizer.save_pretrained(partial)
    partial.rename(final)
    last = next((dict(entry) for entry in reversed(trainer.state.log_history) if "loss" in entry), {})
    record = {
        "schema": 1,
        "stage": stage,
        "steps": trainer.state.global_step,
        "seed": seed,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "weights_sha256": digest_of_folder(final),
        "threads": torch.get_num_threads(),
        "processes": world.world_size(),
        "torch": torch.__version__,
        "last": {name: last[name] for name in ("loss", "reward") if name in last},
    }
    publish(out / DONE, record)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return record


def _merged_from(base: Path, adapter: Path) -> Any:
    """Adapters on the unquantised base, in bf16: what was trained in four bits is evaluated in sixteen."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, local_files_only=True)
    return PeftModel.from_pretrained(whole, adapter).merge_and_unload()
