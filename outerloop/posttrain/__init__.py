"""The pipeline of a post-training challenge: data, sft, grpo or dpo, serve, evaluate, decide.

Runs from one composed configuration, in one place or a stage at a time. Importing this package costs nothing: torch
and trl are imported by the stages that use them. It knows nothing of the record, the queue or the command line.

How the controller is to drive an entry (not written yet)
---------------------------------------------------------

A kind `entry` beside `climb` and `training` (controller/engine.py's `Kind`), whose request freezes: the challenge's
fragments as texts and their digest, the train file's digest and its copy in the state folder, `train_seeds` seeds drawn
at submission, the digests of model and suites in the hub folder, and the opponent (the champion's run, else none).

1. `before_jobs`: `read_table`; `contamination` against suites and reserve, as work of its own in the evaluator's
   account, which tells only above or below and counts against the submitter's checks. Above: `failed:
   contaminated`. The same challenge and data digest: the verdict that exists; `--again` adds seeds.
2. `plan`, per seed s: one slot per training stage. Its command is `python -m outerloop.posttrain CONFIG --out .
   --seed s --stage STAGE` with the stage before as a declared input. Determinants: the stage's tables, the data
   digest, the digest of the model it begins with, s, and the environment; resumable, so exit code 75 and a lost
   node mean another attempt.
3. Then per suite and seed one evaluation slot (`--stage evaluate --sealed ROOT`). Determinants:
   `evaluation_digest`. The untrained model's (`--baseline`) is the same slot for every entry of a challenge. Its
   artifact is the aggregates.
4. `step`: all there: `judging.judge`, without the reserve. Accepted and a reserve: plan the reserve's evaluations
   of both sides, then judge with it. The champion is linked by compare-and-set like a climb's; if it moved, compare
   with the new.
5. An evaluation that was refused (exit code 3) blocks the run: nobody is charged. A malformed row (2) fails the
   entry.
"""
