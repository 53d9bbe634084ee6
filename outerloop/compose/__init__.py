"""Model x method x suites + submission -> pipeline configuration. Reads TOML fragments and task lists, nothing else.

Public: `ids`, `fragment`, `registry`, `task_ids`, `task_domains`, `domain_counts`, `compose`, `serving`, `challenge`,
`check`, each with a keyword `configs` (default: the shipped folder). Unknown ids raise UnknownIdError (a KeyError), bad
combinations ComposeError (a ValueError); either names everything that is wrong.

Must not know: the pipeline that runs a configuration, the record, the queue.
"""

from outerloop.compose.challenge import Challenge, Decision, challenge
from outerloop.compose.check import absent_sources, check
from outerloop.compose.composition import compose
from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.compose.fragments import KINDS, SHIPPED, domain_counts, fragment, ids, task_domains, task_ids
from outerloop.compose.registry import registry
from outerloop.compose.serving import FLAVORS, Flavor, lane_flavors, needs_serving, serving, with_serving
from outerloop.compose.text import toml_text

__all__ = [
    "FLAVORS",
    "KINDS",
    "SHIPPED",
    "Challenge",
    "ComposeError",
    "Decision",
    "Flavor",
    "UnknownIdError",
    "absent_sources",
    "challenge",
    "check",
    "compose",
    "domain_counts",
    "fragment",
    "ids",
    "lane_flavors",
    "needs_serving",
    "registry",
    "serving",
    "task_domains",
    "task_ids",
    "toml_text",
    "with_serving",
]
