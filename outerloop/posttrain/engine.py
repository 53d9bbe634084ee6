"""Generation for an evaluation: requests in, texts out, a failure for each request that infrastructure ended.

Covered: transformers inside this process and a server beside it, each with a seed per trial. Not covered: starting the
server (serve.py), agents (agents.py).

In this process each request has a random generator of its own, so its text does not depend on which other requests
share its batch (up to what padding does to floating point). Sampling adds Gumbel noise to the logits and takes the
largest, which draws from the softmax exactly (Gumbel 1954; Maddison, Tarlow and Minka, "A* sampling", 2014, section 2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outerloop.posttrain.client import Unavailable
from outerloop.posttrain.serve import Server, ServerError, stop_token_ids

__all__ = ["Engine", "Failed", "Request", "ServerEngine", "TimedOut", "TransformersEngine"]


@dataclass(frozen=True)
class Request:
    """One conversation to be continued. The prompt is sealed: it is not in the representation."""

    messages: Sequence[dict[str, str]]
    seed: int

    def __repr__(self) -> str:
        return f"Request(seed={self.seed})"


@dataclass(frozen=True)
class Failed:
    """A request that got no text; `why` names the kind of trouble and quotes nothing."""

    why: str


@dataclass(frozen=True)
class TimedOut:
    """An agent that did not come to an answer in time: a wrong answer."""


class Engine(Protocol):
    """What an evaluation needs of a model."""

    def generate(self, requests: Sequence[Request]) -> Sequence[str | Failed | TimedOut]:
        """One answer for each request, in order. Never raises for a request's sake."""

    def close(self) -> None:
        """Give back what it holds. It is not used afterwards."""


class TransformersEngine:
    """The model in this process, on a GPU if there is one."""

    def __init__(self, folder: Path, *, temperature: float, top_p: float, max_new_tokens: int, batch_size: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(
            folder, padding_side="left", local_files_only=True, trust_remote_code=False
        )
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = (
            AutoModelForCausalLM.from_pretrained(
                folder, dtype="auto", local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
            .to(self._device)
            .eval()
        )
        self._temperature, self._top_p = temperature, top_p
        self._max_new_tokens, self._batch_size = max_new_tokens, batch_size

    def generate(self, requests: Sequence[Request]) -> list[str | Failed]:
        found: list[str | Failed] = []
        for start in range(0, len(requests), self._batch_size):
            batch = requests[start : start + self._batch_size]
            try:
                found += self._batch(batch)
            except Exception as error:  # out of memory, a device that went away: the trials are lost, not wrong
                found += [Failed(type(error).__name__)] * len(batch)
        return found

    def close(self) -> None:
        pass

    def _batch(self, requests: Sequence[Request]) -> list[str]:
        import torch

        texts = [
            self._tokenizer.apply_chat_template(list(request.messages), add_generation_prompt=True, tokenize=False)
            for request in requests
        ]
        # the template has written the special tokens
        encoded = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        ids, mask = encoded["input_ids"].to(self._device), encoded["attention_mask"].to(self._device)
        with torch.inference_mode():
            made = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=self._max_new_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
                pad_token_id=self._tokenizer.pad_token_id,
                logits_processor=self._processors([request.seed for request in requests]),
            )
        return list(self._tokenizer.batch_decode(made[:, ids.shape[1] :], skip_special_tokens=True))

    def _processors(self, seeds: list[int]) -> Any:
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

        processors = LogitsProcessorList()
        if self._temperature > 0:
            processors.append(TemperatureLogitsWarper(self._temperature))
            if self._top_p < 1:
                processors.append(TopPLogitsWarper(self._top_p))
            processors.append(_gumbel_noise(seeds))
        return processors


class ServerEngine:
    """A server beside this process, started with the first request and again for each batch that finds it dead.

    Requests that a dead server left unanswered fail; who asks for them once more (evaluate.py) gets a new server. What
    the server refuses (a prompt longer than its context) fails as well: it is no wrong answer.
    """

    def __init__(
        self, server: Server, *, temperature: float, top_p: float, max_new_tokens: int, concurrency: int
    ) -> None:
        self._server = server
        self._concurrency = concurrency
        self._sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_new_tokens,
            "stop_token_ids": stop_token_ids(server.model),
        }

    def generate(self, requests: Sequence[Request]) -> list[str | Failed]:
        try:
            self._server.ensure()
        except ServerError as error:
            print(f"evaluation: {error}", file=sys.stderr, flush=True)
            return [Failed("the server did not start")] * len(requests)
        with ThreadPoolExecutor(self._concurrency) as pool:
            return list(pool.map(self._one, requests))

    def close(self) -> None:
        self._server.stop()

    def _one(self, request: Request) -> str | Failed:
        body = {"model": self._server.name, "messages": list(request.messages), "seed": request.seed, **self._sampling}
        try:
            answer = self._server.client.post("/v1/chat/completions", body)
            content = answer["choices"][0]["message"]["content"]
        except Unavailable as error:
            return Failed(str(error))
        except (KeyError, IndexError, TypeError, ServerError) as error:
            return Failed(f"an answer that has no text ({type(error).__name__})")
        if content is None:
            return ""
        return content if isinstance(content, str) else Failed("an answer that has no text")


def _gumbel_noise(seeds: list[int]) -> Any:
    """Adds row i's own Gumbel noise to row i's logits."""
    import torch

    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def noisy(input_ids: Any, scores: Any) -> Any:
        # drawn on the CPU, so a seed means the same on every device
        uniform = torch.stack(
            [torch.rand(scores.shape[1], generator=generator, dtype=torch.float64) for generator in generators]
        )
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-300, 1 - 1e-16)))
        return scores + gumbel.to(scores.device, torch.float32)

    return noisy
