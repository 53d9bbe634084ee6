"""PURE. Campaigns: dominance, Pareto front, reserve check, the event ledger's fold, and what is to be done next.

Values in, values out: nothing here touches a disk, a database, a process, a clock or a source of randomness.
`fold(events)` is the state; `next_work(state, config, candidates)` is what to do in it.

How the controller drives a campaign
------------------------------------

`advance(run)` for a campaign, under the run's lease:

1. `state = fold(ledger)`. Every append is one transaction that gives the event the number `state.seq + 1`; the
   database's uniqueness of (campaign, seq) is the compare-and-set. Who loses folds what he missed and goes on
   from step 2: *nothing computed from an older state may be appended*. `apply(state, event)` after each append.
2. **Harvest.** For each job in `state.live`, whose slot has ended for good (a blocked or retried slot has not):
   * `split`: `GenerationEvent(status="split_ready", split_sha256=…, totals=…)`, or `split_failed` with a detail;
     `totals` only if the split command tells the test set's denominators.
   * `train`: `training_event(job, config, TrainingEnd(…))`.
   * `evaluate`, role `development`: `TeacherEvent(status="margins", attempt, group, sha256)`, or `failed` with the
     group (both stand in `job.awaits`: `margins:<generation>:<attempt>:<group>`).
   * `evaluate`, other roles: `evaluation_events(state, job, {checkpoint: Scored(…)})`. Evaluations ready in the
     same pass go through `ready_order` and are appended in that order: round, run id, checkpoint. A reserve
     evaluation under `reserve_rule = "optimism"` carries `Scored.optimism`, from `selection_optimism` over the
     recorded test margins of the generation.
   * `teacher`: `TeacherEvent(status="finished", path=fields["teacher_file"], sha256=…)` after the file was moved
     into place, or `failed`.
   * `package`: `PackageEvent(status="finished", exit_code=…)`.
   Append the first, do step 3's records, and **harvest again**: what is owed may depend on what was just appended
   (the first row fixes the test set's denominators), and so a ledger does not depend on where a process was
   killed. `gpu_hours` of an outcome are those its job used. A job leaves `state.live` with its last awaited outcome;
   outcomes that are in the ledger already are not owed again.
3. **Record.** `while next_work(…) == [Record(event)]`: append `event`. These follow from the ledger alone:
   `pareto_set` before `champion` after an evaluation;
   `reserve_check` verdicts; `package` dropped; `dispatch` candidates_rejected; `generation` opened; `reserve_check`
   started; `teacher` started; `run` ensemble; `round`. `round` freezes members, seeds, expanded overrides and
   the whole candidates list.
4. **Hand out.** `next_work` now gives jobs, the live ones first and at most `parallel` in all. For the first that is
   not `live`: append `DispatchEvent(action="launched", job=job)` (the intent, with the whole job in it), *then*
   ask the dispatcher for its slot, then step 3 again, since a record may be due by now. For a live one only ask:
   same determinants, same slot, no second submission; so a kill between the two is healed by asking. For a
   `package` job that has a slot, and while `state.packaging.announced` is False, append
   `PackageEvent(status="launched")`; or `launch_failed` (which ends the job) when it could not be submitted.
   A training that can't be handed out appends no dispatch but its end: `RunEvent(status="train_failed")` when
   the base config vanished or changed since the round (`reads["base"]`), `stale_run_dir` when its output folder
   exists and no event speaks of it.
5. Nothing appended and nothing to hand out: park on the live jobs. `finished(…)` ends the run.

Operators' words are `dispatch` events, appended at any time: `advance` (with `reason`; refuse it before the first
generation), `stop`, `resume`, `cancel` (the controller also scancels; the ends of those jobs are harvested as
failures), and `retry` with `target` "teacher", "split" or "package"; a retried teacher or split has the same
determinants, so its failed slots are reopened, too.

The candidates file is read before every call: `parse_candidates`, then `dataclasses.replace(list, base_sha256=…,
present=…)` with the digests of base configs and of existing soft-target files; a ConfigError becomes
`BrokenCandidates(digest, reason, …)`, which keeps the last valid list. Before the first generation a broken file
is an error for the operator, and nothing is opened.

Which fields of a Job become determinants of its slot: exactly `job.determinants()`, that is `kind`, `role`,
`command` (the template), `fields`, `reads`, `ensemble`, and per member the digests of checkpoint, config and band
scores, in order. The controller adds the tree and the environment. Not determinants: `key`, `awaits`,
`generation`, `round`, `run_id` (unless repeated in `fields`), `resources`, and every path that is substituted into
the template, since the digests in `reads` and members stand for their content. `fields` of a training hold `base`
and `overrides`: its config is `render_config(base YAML, overrides, split=…, seed=…)`, written once.

The jobs file of an evaluator lists `job.members` in order; its `band_scores` is the file whose digest is
`band_scores_sha256` (for an ensemble `reads["band_scores"]`), absent when "". The manifest of a teacher, an
ensemble or a packaged ensemble lists `job.members`. A member whose config no longer has `config_sha256` is an
error: the job's outcome is a failure that says so.

A job of an old generation stays live until it ends and is recorded outside the new front; jobs that were not
handed out are dropped with their generation. What can't be true changes nothing and is listed in
`state.anomalies`; `warnings(state)` has the sentences for `campaign status`.
"""

from outerloop.champion.candidates import (
    BrokenCandidates,
    Candidate,
    CandidateList,
    config_text,
    expand_generation,
    parse_candidates,
    render_config,
    text_digest,
)
from outerloop.champion.config import CampaignConfig, Rules, parse_campaign
from outerloop.champion.decide import held_round, rounds_exhausted
from outerloop.champion.events import (
    ChampionEvent,
    Checkpoint,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    LedgerError,
    PackageEvent,
    ParetoSetEvent,
    ReserveCheckEvent,
    RoundEvent,
    RunEvent,
    TeacherEvent,
    events_from_jsonl,
    events_to_jsonl,
    stamped,
)
from outerloop.champion.front import Front, dominates, insert, lexicographic_champion, pareto_front
from outerloop.champion.ledger import apply, fold
from outerloop.champion.optimism import selection_optimism
from outerloop.champion.outcomes import Scored, TrainingEnd, evaluation_events, ready_order, training_event
from outerloop.champion.plan import Record, Work, finished, next_work
from outerloop.champion.plot import front_table, plot_data, warnings
from outerloop.champion.report import Report, ReportError, parse_report
from outerloop.champion.reserve import (
    CheckError,
    HoldUp,
    HoldUpLine,
    fisher_p,
    hold_up,
    rejection_rate,
    two_proportion_z,
)
from outerloop.champion.rows import DEFAULT_OBJECTIVES, Objective, RowError
from outerloop.champion.state import CampaignState
from outerloop.champion.toml_source import ConfigError
from outerloop.champion.work import Job, Member, Resources

__all__ = [
    "DEFAULT_OBJECTIVES",
    "BrokenCandidates",
    "CampaignConfig",
    "CampaignState",
    "Candidate",
    "CandidateList",
    "ChampionEvent",
    "CheckError",
    "Checkpoint",
    "ConfigError",
    "DispatchEvent",
    "EvalEvent",
    "Event",
    "Front",
    "GenerationEvent",
    "HoldUp",
    "HoldUpLine",
    "Job",
    "LedgerError",
    "Member",
    "Objective",
    "PackageEvent",
    "ParetoSetEvent",
    "Record",
    "Report",
    "ReportError",
    "ReserveCheckEvent",
    "Resources",
    "RoundEvent",
    "RowError",
    "Rules",
    "RunEvent",
    "Scored",
    "TeacherEvent",
    "TrainingEnd",
    "Work",
    "apply",
    "config_text",
    "dominates",
    "evaluation_events",
    "events_from_jsonl",
    "events_to_jsonl",
    "expand_generation",
    "finished",
    "fisher_p",
    "fold",
    "front_table",
    "held_round",
    "hold_up",
    "insert",
    "lexicographic_champion",
    "next_work",
    "pareto_front",
    "parse_campaign",
    "parse_candidates",
    "parse_report",
    "plot_data",
    "ready_order",
    "rejection_rate",
    "render_config",
    "rounds_exhausted",
    "selection_optimism",
    "stamped",
    "text_digest",
    "training_event",
    "two_proportion_z",
    "warnings",
]
