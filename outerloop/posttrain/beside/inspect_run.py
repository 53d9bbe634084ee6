"""Conversations with tools, run by inspect-ai in its own environment: inspect_run.py WORK.json ANSWERS.json LOGS

Covered: one sample per trial, each with its own seed in every turn, a limit of turns and of time, tools by name. Not
covered: scores; the answers of tasks never come here. It imports nothing of outerloop: what it is told is in WORK.

WORK: {"base_url", "model", "requests": [{"messages", "seed"}], "sampling": {temperature, top_p, max_tokens,
"stop_token_ids"}, "tools": [names], "max_turns", "timeout_sec" or null, "request_timeout_sec", "concurrency"}. The
server's key is in $OUTERLOOP_API_KEY. ANSWERS: for each request {"text"} or {"failed": kind} or {"timeout": true}.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import operator
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    execute_tools,
    get_model,
)
from inspect_ai.solver import solver
from inspect_ai.tool import ToolDef, ToolError

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST = 1000
_MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return Fraction(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError


async def calculator(expression: str) -> str:
    """Compute an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / and parentheses.
    """
    try:
        if len(expression) > _LONGEST:
            raise ValueError
        found = _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        raise ToolError("that is no arithmetic expression") from None
    return str(found.numerator) if found.denominator == 1 else str(float(found))


def _tool(name: str) -> ToolDef:
    if name == "calculator":
        return ToolDef(calculator, name=name)
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function)
    return ToolDef(found, name=function)


def _kind(error: BaseException) -> str:
    attempt = getattr(error, "last_attempt", None)  # tenacity's RetryError
    if attempt is not None:
        error = attempt.exception() or error
    status = getattr(error, "status_code", None)
    return f"HTTP {status}" if isinstance(status, int) else type(error).__name__


def main(work: Path, answers: Path, logs: Path) -> int:
    given = json.loads(work.read_text(encoding="utf-8"))
    tools = [_tool(name) for name in given["tools"]]
    found: dict[int, dict[str, Any]] = {}
    sampling = given["sampling"]

    async def converse(messages: list[Any], seed: int) -> str:
        model = get_model()
        for turn in range(given["max_turns"]):
            config = GenerateConfig(
                # another one in every turn: with one constant a model that asked in vain asks the same again
                seed=(seed + turn) % 2**63,
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=sampling["max_tokens"],
                extra_body={"stop_token_ids": sampling["stop_token_ids"]},
                max_retries=0,
                attempt_timeout=max(1, round(given["request_timeout_sec"])),
            )
            output = await model.generate(messages, tools=tools, config=config)
            if output.error:
                raise RuntimeError
            messages.append(output.message)
            if not output.message.tool_calls:
                return str(output.completion)
            messages.extend((await execute_tools(messages, tools)).messages)
        return ""  # it never came to an answer, and that is wrong

    @solver
    def conversation() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            number = int(state.sample_id)
            request = given["requests"][number]
            messages = [_MESSAGES[each["role"]](content=each["content"]) for each in request["messages"]]
            limit = asyncio.timeout(given["timeout_sec"])
            try:
                async with limit:
                    found[number] = {"text": await converse(messages, request["seed"])}
            except TimeoutError as error:
                found[number] = {"timeout": True} if limit.expired() else {"failed": _kind(error)}
            except Exception as error:  # of the server, or of a tool: not the model's
                found[number] = {"failed": _kind(error)}
            state.messages = messages
            state.completed = True
            return state

        return solve

    samples = [Sample(id=str(number), input="see messages") for number in range(len(given["requests"]))]
    eval(
        Task(dataset=samples, solver=conversation(), name="suite"),
        model=get_model(f"openai-api/outerloop/{given['model']}", base_url=given["base_url"]),
        log_dir=str(logs),
        log_format="json",
        log_model_api=False,
        display="none",
        score=False,
        max_samples=given["concurrency"],
        max_connections=given["concurrency"],
    )
    unanswered = {"failed": "inspect gave no answer"}
    text = json.dumps([found.get(number, unanswered) for number in range(len(given["requests"]))])
    partial = answers.with_name(f".{answers.name}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(answers)
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(*map(Path, sys.argv[1:4])))
