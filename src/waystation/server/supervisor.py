"""Background work: started together, restarted when it fails, stopped in good order."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.backoff import backoff
from waystation.seam import pause

if TYPE_CHECKING:
    from waystation.seam import Job

log = logging.getLogger(__name__)

FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0
_HEALTHY_SECONDS = 60.0


class JobState(msgspec.Struct, kw_only=True):
    """How a job is doing."""

    name: str
    status: Literal["starting", "running", "restarting", "stopped"] = "starting"
    restarts: int = 0
    failures: int = 0
    last_error: str | None = None


class Supervisor:
    """Runs jobs. A job that fails is started again, after longer and longer waits."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._states: dict[str, JobState] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, job: Job) -> None:
        self._jobs[name] = job
        self._states[name] = JobState(name=name)

    def start(self) -> None:
        for name, job in self._jobs.items():
            self._tasks.append(asyncio.create_task(self._watch(name, job), name=name))

    def states(self) -> list[JobState]:
        return list(self._states.values())

    @property
    def failing(self) -> bool:
        return any(state.status == "restarting" for state in self._states.values())

    async def stop(self, grace: float = 25.0) -> None:
        """Let the jobs finish; those that take longer than `grace` are cancelled."""
        self.stopping.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace)
        for task in late:
            log.warning("job %s did not finish in time", task.get_name())
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _watch(self, name: str, job: Job) -> None:
        state = self._states[name]
        while not self.stopping.is_set():
            state.status = "running"
            begun = time.monotonic()
            try:
                await job(self.stopping)
            except Exception as error:
                log.exception("job %s failed", name)
                state.last_error = type(error).__name__  # strangers see it; the rest is in the log
            else:
                if self.stopping.is_set():
                    break
                state.last_error = "it ended by itself"
            healthy = time.monotonic() - begun >= _HEALTHY_SECONDS
            state.failures = 1 if healthy else state.failures + 1
            state.restarts += 1
            state.status = "restarting"
            wait = backoff(state.failures, first=FIRST_WAIT, longest=_LONGEST_WAIT)
            await pause(self.stopping, wait)
        state.status = "stopped"
