#!/bin/bash
# Written by outerloop; what is executed stands in spec.json and attempt.json.
OUTERLOOP_SCRATCH=$(mktemp -d "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/outerloop-$(id -u)-XXXXXXXXXX") ||
    OUTERLOOP_SCRATCH=/nonexistent
export OUTERLOOP_SCRATCH OUTERLOOP_CACHE_SEED='/lab/seed $x'
export XDG_CACHE_HOME="$OUTERLOOP_SCRATCH/cache"
export HF_HOME="$OUTERLOOP_SCRATCH/cache/huggingface"
export TRITON_CACHE_DIR="$OUTERLOOP_SCRATCH/cache/triton"
export VLLM_CACHE_ROOT="$OUTERLOOP_SCRATCH/cache/vllm"
export MPLCONFIGDIR="$OUTERLOOP_SCRATCH/cache/matplotlib"
module load cuda
export NCCL_IB_HCA=mlx5
exec '/opt/py thon/bin/python3' -I -m outerloop.job --array '/lab/o'"'"'brien s/arrays/ol-x-array-0123456789abcdef-0/map.json'
