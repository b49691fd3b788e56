"""Background jobs."""

from __future__ import annotations

import asyncio

import pytest

from waystation.seam import Job, every
from waystation.server import supervisor as module
from waystation.server.supervisor import Supervisor


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.001)


async def test_a_job_that_fails_is_started_again() -> None:
    starts = 0
    third = asyncio.Event()

    async def job(stopping: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise ValueError(starts)
        third.set()
        await stopping.wait()

    supervisor = Supervisor()
    supervisor.add("job", job)
    supervisor.start()
    await asyncio.wait_for(third.wait(), 5)
    [state] = supervisor.states()
    assert (state.status, state.restarts) == ("running", 2)
    assert state.last_error == "ValueError"
    await supervisor.stop()


async def test_a_job_that_ends_by_itself_is_started_again() -> None:
    ends = 0
    second = asyncio.Event()

    async def job(stopping: asyncio.Event) -> None:
        nonlocal ends
        ends += 1
        if ends == 2:
            second.set()

    supervisor = Supervisor()
    supervisor.add("job", job)
    supervisor.start()
    await asyncio.wait_for(second.wait(), 5)
    await supervisor.stop()


async def test_one_jobs_failure_leaves_the_others_alone() -> None:
    worked = asyncio.Event()

    async def broken(stopping: asyncio.Event) -> None:
        raise ValueError

    async def work() -> None:
        worked.set()

    supervisor = Supervisor()
    supervisor.add("broken", broken)
    supervisor.add("sound", every(60, work))
    supervisor.start()
    await asyncio.wait_for(worked.wait(), 5)
    await supervisor.stop()
    assert {state.status for state in supervisor.states()} == {"stopped"}


async def test_stopping_lets_jobs_finish() -> None:
    begun, finished = asyncio.Event(), False

    async def job(stopping: asyncio.Event) -> None:
        nonlocal finished
        begun.set()
        await stopping.wait()
        await asyncio.sleep(0.01)
        finished = True

    supervisor = Supervisor()
    supervisor.add("job", job)
    supervisor.start()
    await begun.wait()
    await supervisor.stop()
    assert finished


async def test_stopping_does_not_wait_for_ever() -> None:
    begun = asyncio.Event()

    async def job(stopping: asyncio.Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    supervisor = Supervisor()
    supervisor.add("stubborn", job)
    supervisor.start()
    await begun.wait()
    await asyncio.wait_for(supervisor.stop(grace=0.01), 5)


async def test_a_regular_job_is_done_again_and_again() -> None:
    times = 0
    third = asyncio.Event()

    async def work() -> None:
        nonlocal times
        times += 1
        if times == 3:
            third.set()

    stopping = asyncio.Event()
    task = asyncio.create_task(_run(every(0.001, work), stopping))
    await asyncio.wait_for(third.wait(), 5)
    stopping.set()
    await asyncio.wait_for(task, 5)


async def _run(job: Job, stopping: asyncio.Event) -> None:
    await job(stopping)
