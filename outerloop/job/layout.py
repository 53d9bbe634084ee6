"""Names of the files in a slot and the shape of what the job writes. Shared by the job and its readers.

Standard library only. A slot directory looks like this (see the explanation page on slots):

    spec.json                      Spec: determinants and work, written once by the dispatcher
    accepted                       {"attempt": n, "restart": r}: the pinned result, made by link
    attempts/<n>/attempt.json      Order: what this attempt was allowed, written by the dispatcher
    attempts/<n>/job.sh            what was given to the cluster
    attempts/<n>/submitted.json    job id, cluster, job name, time, host
    attempts/<n>/claim.json        made by link by the job at its start
    attempts/<n>/r<restart>/       stdout.log stderr.log score.stdout.log score.stderr.log slurm.log out/
                                   claim.json (of a restart that took over), tree/ (several nodes, while it runs)
    attempts/<n>/env/              what an environment slot built: the path is final
    attempts/<n>/result.json       written last by the job
    attempts/<n>/settled.json      how the attempt ended, linked by the dispatcher
    state/                         only for resumable work

    attempts/<n>/member.json       only in a pack: how its process ended (shape in `outerloop.job.pack`)

Beside the slots, for a job array or a pack: arrays/<name>/map.json (shape in `outerloop.job.array`), job.sh,
submitted.json, a pack's slurm.log, and an array's slurm.log.<task>, to which the slurm.log of its attempts' r0 is a
link.

spec.json
    {"schema": 1, "digest": "<64 hex>", "determinants": {...}, "work": {...}}

    determinants: the canonical mapping of `outerloop.slots.identity.Determinants` (its SHA-256 is the digest):
        schema, tree, command, launch, metric, score, env, image, environment, prologue, cpus, memory_mb, gpus,
        gpu_type, nodes, inputs, replicate, guards (metric names read besides), outputs (declared artifact paths)
    work: facts that are needed to execute but determine nothing:
        mirror (bare repository that holds `tree`), base_tree (for score), label, resumable (bool),
        network (bool), input_files ([{path, source, digest, hidden}]), environment_slot (path or ""),
        kind ("measure" | "environment"), output_cap_bytes (of the outputs handed to score), artifact_cap_bytes (of
        the outputs that are kept). kind and network may stand in determinants too, base_tree as score_tree.
        A launch ({"argv", "env", "files": {name: text}}) may stand in either mapping; its files are written into
        OUTERLOOP_OUTPUT_DIR. reports (resumable work): what an evaluator writes into the checkpoint folder and which a
        later attempt need not write again (`outerloop.job.reports`).
        An input's digest (64 hex, "sha256:" before it or not) is checked for regular files up to a GiB. Its path is
        relative to the tree, or absolute and then shown where it is.
        environment_slot is the slot's folder: its accepted attempt's env/ is used (or a folder with a bin/ itself).

attempts/<n>/attempt.json
    {"schema": 1, "digest": ..., "attempt": n, "minutes": 10.0, "margin_seconds": 60, "isolation": "none" | "bwrap" |
     "apptainer", "image_path": "", "cache_seed": "", "keep_logs_bytes": 1048576, "term_grace_seconds": 5.0,
     "gpu_form": ["--gpus-per-node=4"]}
    minutes bounds the command phase (and, separately, the score phase); it is not a determinant.
    gpu_form is how this site spells GPUs on an srun line; used with several nodes only.

claim.json
    {"schema": 1, "digest", "attempt", "job_id", "restart", "host", "node", "pid", "pid_start", "started",
     "cpus_seen", "gpus_seen"}
    job_id is SLURM_JOB_ID for a plain job, "<SLURM_ARRAY_JOB_ID>_<SLURM_ARRAY_TASK_ID>" for an array task, and
    OUTERLOOP_LOCAL_JOB_ID on the local backend. pid_start is field 22 of /proc/<pid>/stat.

result.json
    {"schema": 1, "digest", "attempt", "job_id", "restart", "host",
     "outcome": "ok" | "failed",
     "reason": null | "EXIT_<n>" | "SIGNAL_<n>" | "TIMEOUT" | "NO_METRIC" | "CHECKOUT" | "SANDBOX" | "SCRATCH_FULL" |
               "SPEC" | "INPUT" | "ENVIRONMENT" | "RESOURCES" | "ARTIFACT" | "CANCELLED",
     "phase": null | "setup" | "command" | "score" | "parse" | "artifacts"   (the phase that failed),
     "detail": one sentence for a person, "exit_code": int | null, "signal": int | null,
     "metric": {"name": ..., "text": "7542.0"} | null, "guards": {name: text},
     "phases": {phase: {"started": "<UTC ISO 8601>", "ended": ..., "seconds": float}},
     "cpu_seconds": float, "max_rss_mb": float, "cpus_seen": int, "gpus_seen": [..],
     "stdout": {"bytes": int, "sha256": "...", "cut": bool}, "stderr": {same},
     "stderr_tail": "last lines, at most 2000 characters", "isolation": "none" | "bwrap" | "apptainer",
     "artifacts": [{"path", "bytes", "sha256"}], "killed_processes": int, "minutes": float}
    Metric text is the number as it was printed, so that floors can be compared in exact decimal.
    seconds of command and score are charged time: while the scheduler had the job suspended, none. stdout and stderr
    are the command's, whole streams; stderr_tail is the scorer's when the scorer failed. max_rss_mb is of the largest
    single process. reason ARTIFACT (phase artifacts): a declared output is missing, too large or leads out.
    CANCELLED: `signal` reached the job, or (signal null) resumable work left requeue.json in state/.

The command starts in the tree, where the parent folders of declared outputs exist; in a sandbox nothing else of the
tree is writable (an output in the tree's root is there as an empty file, to be overwritten, not renamed over).

The command's environment: PATH, locale, device selection and library variables of the node, the declared variables,
HOME, TMPDIR and caches in scratch, and of OUTERLOOP_* only OUTERLOOP_CKPT_DIR (resumable), OUTERLOOP_OUTPUT_DIR
(resumable or launch), OUTERLOOP_ENV (environment slots). The wrapper itself reads SLURM_*, OUTERLOOP_LOCAL_JOB_ID
(which comes first), OUTERLOOP_SCRATCH and OUTERLOOP_CACHE_SEED (set by job.sh).

Exit codes of the program: 0 a measured value, 1 a result that says what failed, 74 the result could not be written,
95 to 99 below, 128 + n ended by signal n (with a result that says so).

settled.json
    {"schema": 1, "attempt", "outcome", "reason", "detail", "state", "node", "job_id", "at",
     "gpu_hours": float | null}
"""

from __future__ import annotations

SCHEMA = 1

SPEC = "spec.json"
ACCEPTED = "accepted"
ATTEMPTS = "attempts"
ORDER = "attempt.json"
SCRIPT = "job.sh"
SUBMITTED = "submitted.json"
CLAIM = "claim.json"
RESULT = "result.json"
SETTLED = "settled.json"
STATE = "state"
STDOUT = "stdout.log"
STDERR = "stderr.log"
SLURM_LOG = "slurm.log"
OUT = "out"

EXIT_NOT_CLAIMANT = 95
EXIT_SPEC = 96
EXIT_CHECKOUT = 97
EXIT_SANDBOX = 98
EXIT_RESTARTED = 99


def restart_folder(restart: int) -> str:
    """Name of the folder that one (re)start of an attempt writes to."""
    return f"r{restart}"
