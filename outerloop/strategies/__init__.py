"""PURE. StrategyPlan to LaunchSpec: how the strategy that the planner chose is started.

Import from here: `StrategyPlan`, `LaunchSpec`, `Rendezvous`, `CompileError`, `Compiler`, `register_compiler`,
`compiler_for`, `registered_families`, `compile_plan`, `compile_command`, and the tokens that the node wrapper
replaces. Same plan, same spec, byte for byte.

This room must not know the environment, a disk, a framework, an address or a port: whatever only the node
can know stands in the spec as one of the tokens of `spec.py` and is resolved there.
"""

from outerloop.strategies.command import compile_command
from outerloop.strategies.errors import CompileError
from outerloop.strategies.families import FAMILIES
from outerloop.strategies.own_command import OWN_COMMAND
from outerloop.strategies.plan import StrategyPlan
from outerloop.strategies.registry import (
    Compiler,
    compile_plan,
    compiler_for,
    register_compiler,
    registered_families,
)
from outerloop.strategies.spec import (
    FILES_TOKEN,
    RDZV_ENDPOINT_TOKEN,
    RDZV_ID_TOKEN,
    LaunchSpec,
    Rendezvous,
)

__all__ = [
    "FAMILIES",
    "FILES_TOKEN",
    "OWN_COMMAND",
    "RDZV_ENDPOINT_TOKEN",
    "RDZV_ID_TOKEN",
    "CompileError",
    "Compiler",
    "LaunchSpec",
    "Rendezvous",
    "StrategyPlan",
    "compile_command",
    "compile_plan",
    "compiler_for",
    "register_compiler",
    "registered_families",
]
