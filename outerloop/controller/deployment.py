"""A deployment opened for work: settings turned into a record, a cluster and a state folder.

Covered: choosing the backend, reaching the record (embedded or by URL), the frozen context that dispatch takes.
Not covered: anything that decides.
"""

from __future__ import annotations

import getpass
import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

from outerloop.compute.protocol import Compute
from outerloop.dispatch.context import Context, Patience
from outerloop.dispatch.observe import Observation, observe
from outerloop.dispatch.wakes import WakePolicy
from outerloop.record.models import REVISION
from outerloop.record.store import Record
from outerloop.settings import CONFIG_VARIABLE, Settings, effective_backend
from outerloop.slots import StateRoot

__all__ = ["Deployment", "account", "open_compute", "open_deployment"]


def account() -> str:
    """The Unix account whose jobs ours become; works where the password database does not know the uid.

    USER and LOGNAME come last: after sudo or su they may name somebody else, and runs of another owner are not seen.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        pass
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


@dataclass
class Deployment:
    """Everything that a caller of the controller needs. One per process."""

    settings: Settings
    context: Context
    wakes: WakePolicy
    notes: list[str] = field(default_factory=list)
    """What a person should read: adopted jobs, a queue that does not answer, and the like."""
    _observation: Observation | None = None

    @property
    def record(self) -> Record:
        return self.context.record

    @property
    def root(self) -> StateRoot:
        return self.context.root

    def observation(self, *, fresh: bool = False) -> Observation:
        """The one listing of this process, asked for when it is first needed; `fresh` asks again."""
        if self._observation is None or fresh:
            self._observation = observe(self.context.record, self.context.compute)
            if not self._observation.complete:
                self.notes.append(f"the queue did not answer: {self._observation.why_not}")
        return self._observation

    def forget_observation(self) -> None:
        self._observation = None

    def close(self) -> None:
        self.context.record.close()


def open_compute(settings: Settings, root: StateRoot) -> Compute:
    """The backend that the settings choose."""
    if effective_backend(settings) == "local":
        from outerloop.compute.local import Local

        return Local(root.local_spool, **settings.local.model_dump())
    from outerloop.compute.slurm import SlurmCli

    slurm = settings.slurm
    cli = SlurmCli(
        bin_dir=slurm.bin_dir,
        slurm_conf=slurm.conf,
        user=slurm.user,
        submit_timeout=slurm.sbatch_timeout_seconds,
        query_timeout=slurm.query_timeout_seconds,
        max_script_bytes=slurm.max_script_bytes,
        accounting=slurm.accounting,
    )
    if slurm.api == "cli":
        return cli
    from outerloop.compute.slurm_api import WARM_UP_CALLS, SlurmApi, pyslurm_installed

    if slurm.api == "auto" and not pyslurm_installed(slurm.pyslurm_path):
        return cli
    return SlurmApi(cli, path=slurm.pyslurm_path, warm_up=WARM_UP_CALLS if slurm.api == "auto" else 0)


def database_url(settings: Settings, root: StateRoot, *, start: bool = True) -> str:
    """The record's URL; starts the embedded server when there is no other and `start` is set."""
    given = settings.database_url.get_secret_value()
    if given:
        return given
    from outerloop.record import embedded

    if start:
        return embedded.ensure_running(root.database)
    return embedded.url_of(root.database)


def _exports(config: Path | None) -> tuple[tuple[str, str], ...]:
    """The settings that came from the environment, for wake jobs: the file's name and what overrides it.

    A database URL is left out, because a script is no place for a password.
    """
    given = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("OUTERLOOP_")
        and name != CONFIG_VARIABLE
        and name.removeprefix("OUTERLOOP_").lower().split("__")[0] in Settings.model_fields
        and "DATABASE_URL" not in name
    }
    if config is not None:
        given[CONFIG_VARIABLE] = str(config)
    return tuple(sorted(given.items()))


def open_deployment(settings: Settings, *, config: Path | None, migrate: bool = True) -> Deployment:
    """Open everything. Raises RecordUnavailable, SettingsError, OSError; starts the embedded server if needed."""
    root = StateRoot(settings.state)
    url = database_url(settings, root)
    record = Record(url, owner=account(), slot_root=str(root.path))
    if migrate and record.revision() != REVISION:
        from outerloop.record.migrate import upgrade

        upgrade(url)
    patience = settings.dispatch
    context = Context(
        record=record,
        compute=open_compute(settings, root),
        root=root,
        patience=Patience(
            grace=patience.grace_seconds,
            intent=patience.intent_patience_seconds,
            gone=patience.gone_grace_seconds,
            preempt=patience.preempt_grace_seconds,
            backoff=patience.backoff_seconds,
            lease=patience.lease_seconds,
            max_attempts=patience.max_attempts,
            margin_minutes=patience.margin_minutes,
        ),
        deployment=settings.deployment,
        python=settings.python,
        exports=_exports(config),
        owner_uid=str(os.getuid()),
        job_names=settings.slurm.job_name,
    )
    name, _lane = settings.wake_lane()
    # Without a file a wake job would open some other deployment; with the URL in the environment alone, none.
    findable = config is not None and "OUTERLOOP_DATABASE_URL" not in os.environ
    wakes = WakePolicy(
        mode=settings.wake.mode if findable else "never",
        lane=settings.lane(name),
        minutes=settings.wake.minutes,
        cap=settings.wake.cap,
        cadence_seconds=settings.wake.cadence_seconds,
    )
    return Deployment(settings, context, wakes)
