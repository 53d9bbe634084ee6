"""torchrun: its launch line for a planned shape, and reading the shape from a user's own line.

Covered: `torchrun`, an absolute path to it, and `python -m torch.distributed.run`, with both spellings
(`--nproc-per-node`, `--nproc_per_node`), both forms (`--x=2`, `--x 2`) and unique abbreviations, as its parser
accepts them.
Not covered: torchrun behind another launcher (`srun`, `env`, `numactl`), which is run as an ordinary command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from outerloop.strategies.spec import RDZV_ENDPOINT_TOKEN, RDZV_ID_TOKEN, Rendezvous

# torch.distributed.run.get_args_parser() of torch 2.13; a test compares the two.
VALUE_OPTIONS = frozenset(
    {
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "event-log-handler",
        "role",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "duplicate-stdout-filters",
        "duplicate-stderr-filters",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "logs-specs",
        "numa-binding",
        "signals-to-handle",
        "shutdown-timeout",
    }
)
FLAG_OPTIONS = frozenset({"help", "standalone", "module", "no-python", "run-path", "virtual-local-rank"})
SHORT_OPTIONS = {"-r": "redirects", "-t": "tee", "-m": "module", "-h": "help"}
SYMBOLIC_COUNTS = frozenset({"gpu", "cpu", "auto", "xpu"})
# Resolved on the node by the wrapper: a fixed value would tie the launch to one machine or one free port.
_NODE_OPTIONS = ("rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "master-addr", "master-port", "local-addr")
# SIGUSR1 is added to torchrun's own defaults so that a Slurm --signal reaches the ranks.
_SIGNALS = "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1"
# The slot's attempts are the retries; a restart inside an attempt would hide a fault from them.
_NO_RESTARTS = "--max-restarts=0"
# Interpreter options that take no value, before -m.
_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*)?")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")


def torchrun_argv(command: Sequence[str], nodes: int, processes_per_node: int) -> tuple[str, ...]:
    """The launch line of `command` on each of `nodes` nodes.

    `--no-python` keeps the command whole, its own interpreter and options included. One node meets with itself
    on a port that torchrun picks; several nodes meet where the wrapper says.
    """
    return (
        "torchrun",
        *_shape_options(nodes, processes_per_node),
        *(_meeting_options(nodes)),
        _NO_RESTARTS,
        _SIGNALS,
        "--no-python",
        *command,
    )


def rendezvous(nodes: int, processes_per_node: int | None) -> Rendezvous | None:
    """None on one node, which needs no address."""
    return Rendezvous(nodes=nodes, processes_per_node=processes_per_node) if nodes > 1 else None


def _shape_options(nodes: int, processes_per_node: int) -> tuple[str, ...]:
    return (f"--nnodes={nodes}", f"--nproc-per-node={processes_per_node}")


def _meeting_options(nodes: int) -> tuple[str, ...]:
    if nodes == 1:
        return ("--standalone",)
    return ("--rdzv-backend=c10d", f"--rdzv-id={RDZV_ID_TOKEN}", f"--rdzv-endpoint={RDZV_ENDPOINT_TOKEN}")


@dataclass(frozen=True)
class TorchrunLine:
    """What a user's torchrun line asks for, with the options that the node needs added."""

    argv: tuple[str, ...]
    nodes: int
    processes_per_node: int | None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass
class _Options:
    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    script: bool = False


def read_torchrun(argv: Sequence[str]) -> TorchrunLine | None:
    """The worker count of a torchrun line, or None when the command is not torchrun.

    Only torchrun's own options are read: whatever follows the script belongs to the script.
    """
    start = _options_start(argv)
    if start is None:
        return None
    options = _own_options(argv[start:])
    reasons = list(options.reasons)
    notes: list[str] = []
    nodes = _node_count(options.values.get("nnodes", "1"), reasons)
    count = _process_count(options.values.get("nproc-per-node", "1"), reasons, notes)
    reasons += [
        f"torchrun's --{name} is resolved on the node; leave it out" for name in _NODE_OPTIONS if name in options.values
    ]
    if "help" in options.flags:
        reasons.append("the command only asks torchrun for its help text")
    elif not options.script and not options.reasons:
        reasons.append("torchrun is given no script to run")
    if nodes > 1 and "standalone" in options.flags:
        reasons.append(f"--standalone is for one node, and --nnodes asks for {nodes}")

    added: list[str] = []
    if "standalone" not in options.flags:
        added += _meeting_options(nodes)
    if "max-restarts" not in options.values:
        added.append(_NO_RESTARTS)
    elif options.values["max-restarts"] != "0":
        reasons.append("torchrun's --max-restarts must be 0: an attempt is retried as a new attempt")
    if "signals-to-handle" not in options.values:
        added.append(_SIGNALS)
    if added:
        notes.append("added to torchrun's options: " + " ".join(added))
    return TorchrunLine(
        argv=(*argv[:start], *added, *argv[start:]),
        nodes=nodes,
        processes_per_node=count,
        notes=tuple(notes),
        reasons=tuple(reasons),
    )


def _options_start(argv: Sequence[str]) -> int | None:
    """Index of torchrun's first own argument."""
    if not argv:
        return None
    if argv[0] == "torchrun" or argv[0].endswith("/torchrun"):
        return 1
    if not _PYTHON.fullmatch(argv[0]):
        return None
    at = 1
    while at < len(argv):
        if argv[at] in ("-W", "-X"):
            at += 2
        elif _PYTHON_FLAGS.fullmatch(argv[at]) or argv[at].startswith(("-W", "-X")):
            at += 1
        else:
            break
    if at + 1 < len(argv) and argv[at] == "-m" and argv[at + 1] == "torch.distributed.run":
        return at + 2
    return at + 1 if at < len(argv) and argv[at] == "-mtorch.distributed.run" else None


def _own_options(args: Sequence[str]) -> _Options:
    options = _Options()
    args = list(args)
    at = 0
    while at < len(args):
        text = args[at]
        if text.startswith("-m") and len(text) > 2:
            # -m with another short option attached: argparse reads the rest as an option of its own
            options.flags.add("module")
            args[at] = "-" + text[2:]
            continue
        if not text.startswith("-") or text == "-":
            options.script = True
            break
        if text == "--":
            options.script = at + 1 < len(args)
            break
        name, given, value = text.partition("=")
        canonical = _canonical(name, options.reasons)
        # -r3 and -t3: a short option with its value attached
        if canonical is None and name[:2] in ("-r", "-t") and len(text) > 2:
            options.values[SHORT_OPTIONS[name[:2]]] = text[2:].removeprefix("=")
        elif canonical is None:
            options.reasons.append(f"{name} is not an option of torchrun; options of the script belong after it")
        elif canonical in FLAG_OPTIONS:
            options.flags.add(canonical)
        elif given:
            options.values[canonical] = value
        elif at + 1 < len(args):
            at += 1
            options.values[canonical] = args[at]
        else:
            options.reasons.append(f"torchrun's {name} has no value")
        at += 1
    return options


def _canonical(name: str, reasons: list[str]) -> str | None:
    if name in SHORT_OPTIONS:
        return SHORT_OPTIONS[name]
    if not name.startswith("--"):
        return None
    plain = name[2:]
    known = VALUE_OPTIONS | FLAG_OPTIONS
    dashed = plain.replace("_", "-")
    # argparse matches one spelling as a whole, never a mixture of the two
    if dashed in known and plain in (dashed, dashed.replace("-", "_")):
        return dashed
    spellings = {s: option for option in known for s in (option, option.replace("-", "_"))}
    matches = sorted({option for s, option in spellings.items() if plain and s.startswith(plain)})
    if len(matches) > 1:
        reasons.append(f"torchrun's {name} is ambiguous: " + ", ".join(f"--{m}" for m in matches))
        return matches[0]
    return matches[0] if matches else None


def _node_count(text: str, reasons: list[str]) -> int:
    low, colon, high = text.partition(":")
    if colon and low != high:
        reasons.append(f"--nnodes={text} is elastic; a slot has a fixed number of nodes")
    if not low.isdecimal() or int(low) < 1:
        reasons.append(f"--nnodes={text} is not a number of nodes")
        return 1
    return int(low)


def _process_count(text: str, reasons: list[str], notes: list[str]) -> int | None:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    if text in SYMBOLIC_COUNTS:
        notes.append(f"--nproc-per-node={text} is resolved at launch; the world size is not known before")
        return None
    reasons.append(f"--nproc-per-node={text} is neither a number nor one of {', '.join(sorted(SYMBOLIC_COUNTS))}")
    return None
