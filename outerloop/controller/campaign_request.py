"""What was asked of a campaign: its configuration, its tree and where its jobs run.

Covered: the request, the settings in force (a campaign lives for weeks: submitting it again with another configuration
or tree changes what is handed out from then on). Not covered: making a request (submit_campaign.py), what happens in
the campaign (campaigns.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.request import REQUEST_SCHEMA, Execution
from outerloop.slots import digest_of

if TYPE_CHECKING:
    from outerloop.champion import CampaignConfig

__all__ = ["CampaignRequest", "Setting", "campaign_question", "settings_in_force"]

SETTING_EVENT = "setting"
"""Kind of the run's event that replaces the configuration."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Setting(_Frozen):
    """A campaign's configuration as it was submitted once, with the tree and the place where its jobs run.

    `source` is the path of campaign.toml: the candidates file and the base configs are looked for from there, before
    every round. Frozen are the text, the tree and the execution.
    """

    source: str
    config: str
    commit: str
    tree: str
    revision: str
    subject: str = ""
    repository: str
    executions: dict[str, Execution]
    """Where jobs without GPUs run ("cpu"), and jobs with them ("gpu")."""

    def execution(self, gpus: int) -> Execution:
        """How and where a job with so many GPUs runs."""
        return self.executions["gpu" if gpus else "cpu"]

    @property
    def parsed(self) -> CampaignConfig:
        """The configuration. Raises ConfigError, which a submission has ruled out."""
        # Here: a wake of any run reads requests, and only a campaign's needs its rules.
        from outerloop.champion import parse_campaign

        return parse_campaign(self.config, self.source)

    @property
    def candidates_path(self) -> Path:
        """Where the candidates file is read."""
        return Path(self.source).parent / self.parsed.candidates

    def same_as(self, other: Setting) -> bool:
        """Whether the two hand out the same jobs."""
        return self.model_dump(exclude={"revision", "subject"}) == other.model_dump(exclude={"revision", "subject"})


class CampaignRequest(_Frozen):
    """A campaign as it was first asked."""

    schema_: int = Field(default=REQUEST_SCHEMA, alias="schema")
    id: str
    kind: Literal["campaign"] = "campaign"
    question: str
    ask: int = 0
    target: str
    name: str
    submitter: str
    created_at: str
    setting: Setting
    priority: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    # What a run's row asks of every request.

    @property
    def benchmark(self) -> str:
        return self.name

    @property
    def definition(self) -> str:
        """One per name: the rules of a campaign are part of its ledger and may change there."""
        return digest_of({"campaign": self.name})

    @property
    def repository(self) -> str:
        return self.setting.repository

    @property
    def subject(self) -> str:
        return self.setting.subject

    @property
    def base_commit(self) -> str:
        return self.setting.commit

    @property
    def base_tree(self) -> str:
        return self.setting.tree

    @property
    def candidate_commit(self) -> str:
        return self.setting.commit

    @property
    def candidate_tree(self) -> str:
        return self.setting.tree


def campaign_question(target: str, name: str) -> str:
    """What makes two submissions one campaign: the repository and the name. The configuration may change."""
    return digest_of({"kind": "campaign", "target": target, "name": name})


def settings_in_force(request: CampaignRequest, events: Sequence[LedgerEvent]) -> list[Setting]:
    """Every setting that the campaign was submitted with, oldest first; the last one counts."""
    later = [Setting.model_validate(event.body["setting"]) for event in events if event.kind == SETTING_EVENT]
    return [request.setting, *later]
