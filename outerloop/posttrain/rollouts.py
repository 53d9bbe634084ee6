"""Completions for GRPO from a server beside the trainer, in the shape in which trl wants them.

Covered: one trainer process, the current weights before every generation, a seed for every completion. Not covered:
several trainer processes, tools. trl's own clients are not used: they need NCCL between trainer and server.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outerloop.posttrain.client import Unavailable
from outerloop.posttrain.seeds import rollout_seed
from outerloop.posttrain.serve import Server, ServerError
from outerloop.posttrain.weights import Weights

__all__ = ["Rollouts"]

_TRIES = 2
"""A request that a live server lost is asked once more; generation has no other effect."""


class Rollouts:
    """trl's `rollout_func`, and what it calls `vllm_generation`: (prompts, trainer) -> token ids and log-probabilities.

    `attach` makes a trainer use it. Raises ServerError out of the trainer when the server is gone.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        *,
        seed: int,
        temperature: float,
        max_tokens: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._server, self._weights = server, Weights(folder)
        self._seed, self._step, self._made = seed, -1, 0
        self._options = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop_token_ids": list(stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """Let trl push weights when its step has changed, and correct for the difference of the two engines.

        Both are what trl does with a vLLM of its own; it was constructed without one.
        """
        self._trainer = trainer
        trainer.use_vllm = True
        trainer.vllm_generation = self
        trainer._last_loaded_step = -1

    def sync_weights(self) -> None:
        """Called by trl before it generates at a new step. Raises ServerError."""
        self._server.check()
        self._weights.push(self._trainer.accelerator.unwrap_model(self._trainer.model), self._server.client)

    def close(self) -> None:
        """After the server ended."""
        self._weights.close()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        tokenizer, step = trainer.processing_class, trainer.state.global_step
        ids = [
            list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])
            for prompt in prompts
        ]
        if step != self._step:
            self._step, self._made = step, 0
        seeds = [rollout_seed(self._seed, step, self._made + index) for index in range(len(ids))]
        self._made += len(ids)
        with ThreadPoolExecutor(self._server.options.max_num_seqs) as pool:
            answers = list(pool.map(self._one, ids, seeds))
        return {
            "prompt_ids": ids,
            "completion_ids": [tokens for tokens, _ in answers],
            "logprobs": [logprobs for _, logprobs in answers],
        }

    def _one(self, prompt: list[int], seed: int) -> tuple[list[int], list[float | None]]:
        body = {"model": self._server.name, "prompt": prompt, "seed": seed, **self._options}
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._server.client.post("/v1/completions", body)
                choice = answer["choices"][0]
                tokens, logprobs = list(choice["token_ids"]), list(choice["logprobs"]["token_logprobs"])
                if tokens and len(tokens) == len(logprobs):
                    return tokens, logprobs
                why = "an answer without tokens"
            except Unavailable as error:
                why = str(error)
            except (KeyError, IndexError, TypeError) as error:
                why = f"an answer in another shape ({type(error).__name__})"
            self._server.check()
            if attempt == _TRIES:
                break
        raise ServerError(f"a completion was lost: {why}; the server's log: {self._server.log}")
