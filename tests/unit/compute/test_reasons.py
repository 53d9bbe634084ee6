"""Refusals that no recording of a running site has, because the site was not reachable at all."""

from __future__ import annotations

from outerloop.compute.protocol import Refused, When
from outerloop.compute.reasons import classify_refusal

NO_CONFIGURATION = """\
sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: error: _establish_config_source: failed to fetch config
sbatch: fatal: Could not establish a configuration source
"""
"""sbatch 22.05 without slurm.conf, SLURM_CONF or a DNS record: nothing was submitted, and waiting may help."""


def test_a_host_that_cannot_find_its_cluster_is_tried_again_and_blocks_no_run() -> None:
    refused = classify_refusal(1, NO_CONFIGURATION)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.when) == ("NoConfiguration", When.LATER)
