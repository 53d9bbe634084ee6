"""The pipeline of a post-training challenge: data, sft, grpo or dpo, serve, evaluate, decide.

Runs from one composed configuration, in one place or a stage at a time. Importing this package costs nothing: torch
and trl are imported by the stages that use them. It knows nothing of the record, the queue or the command line.
"""
