"""Which compiler serves which family. A registry, so that a site can add or replace one."""

from __future__ import annotations

from typing import Protocol

from outerloop.strategies.errors import CompileError
from outerloop.strategies.plan import StrategyPlan
from outerloop.strategies.spec import LaunchSpec


class Compiler(Protocol):
    """Turns the plans of one family into launches. Pure: no environment, no disk, no clock."""

    @property
    def family(self) -> str: ...

    def supports(self, plan: StrategyPlan) -> bool:
        """True when the plan is of this compiler's family."""

    def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
        """Every reason why the plan cannot be launched; empty when it can."""

    def compile(self, plan: StrategyPlan) -> LaunchSpec:
        """The launch. Raises CompileError with all reasons of `validate`."""


_compilers: dict[str, Compiler] = {}


def register_compiler(compiler: Compiler) -> None:
    """Serve `compiler.family` with this compiler, replacing the one registered before."""
    _compilers[compiler.family] = compiler


def registered_families() -> tuple[str, ...]:
    """Families that have a compiler, sorted."""
    return tuple(sorted(_compilers))


def compiler_for(family: str) -> Compiler:
    """The compiler of a family. Raises LookupError that names it and the registered ones."""
    try:
        return _compilers[family]
    except KeyError:
        known = ", ".join(registered_families()) or "none"
        raise LookupError(f"no compiler for strategy family {family!r}; registered: {known}") from None


def compile_plan(plan: StrategyPlan) -> tuple[LaunchSpec, ...]:
    """Every launch of a plan: one per task for `lease_tasks`, so that each task is a slot of its own, else one.

    Raises LookupError for an unknown family, and CompileError with the reasons of all tasks at once.
    """
    compiler = compiler_for(plan.family)
    if plan.family != "lease_tasks" or not plan.tasks:
        return (compiler.compile(plan),)
    specs: list[LaunchSpec] = []
    reasons: list[str] = []
    for index in range(len(plan.tasks)):
        try:
            specs.append(compiler.compile(plan.for_task(index)))
        except CompileError as error:
            reasons += [f"task {index}: {reason}" for reason in error.reasons]
    if reasons:
        raise CompileError(f"strategy {plan.family}", reasons)
    return tuple(specs)
