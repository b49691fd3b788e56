"""Working off a queue: many messages at once, one of each group, until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from waystation.backoff import backoff
from waystation.errors import MessageLost, TryLater, WaystationError
from waystation.queues.base import MAX_RECEIVE, MAX_VISIBILITY

if TYPE_CHECKING:
    from waystation.queues.base import Message, Queue

log = logging.getLogger(__name__)

Handler = Callable[["Message"], Awaitable[None]]

_WAIT_SECONDS = 10.0
_LONGEST_WAIT = 300.0


class Consumer:
    """Hands messages to a handler.

    A message is acknowledged when its handler returns, and given back when it raises, to be
    tried again later and later, or when its TryLater says. While the handler works, the message
    is kept from others; if that fails, the handler is cancelled, because another worker may have
    the message.
    """

    def __init__(
        self,
        queue: Queue,
        handle: Handler,
        *,
        concurrency: int = 16,
        longest: float = 900.0,
        grace: float = 20.0,
    ) -> None:
        """`longest` bounds one handler, `grace` what is still running when told to stop."""
        self.queue = queue
        self.handle = handle
        self._concurrency = concurrency
        self._longest = longest
        self._grace = grace
        self._running: set[asyncio.Task[None]] = set()
        self._troubles = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set, then finish what was begun."""
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                room = min(MAX_RECEIVE, self._concurrency - len(self._running))
                if room <= 0:
                    await asyncio.wait({stop, *self._running}, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await self._take(room, stop)
        finally:
            stop.cancel()
            await self._finish()

    async def _take(self, room: int, stop: asyncio.Task[bool]) -> None:
        receiving = asyncio.create_task(self.queue.receive(room, wait=_WAIT_SECONDS))
        try:
            await asyncio.wait({stop, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return
            messages = receiving.result()
        except WaystationError as error:
            log.warning("%s cannot be received from: %s", self.queue.spec.name, error)
            self._troubles += 1
            await asyncio.wait({stop}, timeout=wait_after(self._troubles))
            return
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})  # what it has received meanwhile goes back
        self._troubles = 0
        for message in messages:
            task = asyncio.create_task(self.process(message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _finish(self) -> None:
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def process(self, message: Message) -> None:
        """Handle one message, to the end."""
        work = asyncio.create_task(self._work(message))
        keeping = asyncio.create_task(self._keep(message, work))
        try:
            async with asyncio.timeout(self._longest):
                await work
        except asyncio.CancelledError:
            if keeping.done():
                log.warning("message %s of %s was lost", message.id, self.queue.spec.name)
            elif _asked_to_stop():
                keeping.cancel()
                await self._give_back(message, 0.0)  # the message goes on without us
                raise
            else:  # the handler itself awaited something that was cancelled
                await self._failed(message, keeping)
        except TryLater as error:
            log.warning("message %s of %s waits: %s", message.id, self.queue.spec.name, error)
            keeping.cancel()
            await self._give_back(message, min(error.retry_after, MAX_VISIBILITY))
        except Exception:  # noqa: BLE001 - whatever it is, the message comes again
            await self._failed(message, keeping)
        else:
            await self._acknowledge(message)
        finally:
            keeping.cancel()

    async def _failed(self, message: Message, keeping: asyncio.Task[None]) -> None:
        log.exception(
            "message %s of %s failed, receive %d of %d",
            message.id,
            self.queue.spec.name,
            message.receives,
            self.queue.spec.max_receives,
        )
        keeping.cancel()  # before, lest it takes back what is given back
        await self._give_back(message, wait_after(message.receives))

    async def _work(self, message: Message) -> None:
        await self.handle(message)

    async def _keep(self, message: Message, work: asyncio.Task[None]) -> None:
        """Extend the message's visibility for as long as the work goes on, or stop the work."""
        seconds = self.queue.spec.visibility
        loop = asyncio.get_running_loop()
        ours_until = loop.time() + seconds
        while True:
            await asyncio.sleep(seconds / 3)
            begun = loop.time()
            try:
                async with asyncio.timeout_at(ours_until):
                    await self.queue.extend(message, seconds)
                ours_until = begun + seconds
            except MessageLost:
                break
            except Exception as error:  # noqa: BLE001 - the next try may succeed
                log.warning("message %s could not be extended: %s", message.id, error)
                if loop.time() >= ours_until:
                    break
        work.cancel()

    async def _acknowledge(self, message: Message) -> None:
        try:
            await self.queue.ack(message)
        except WaystationError as error:
            log.warning("message %s will come again: %s", message.id, error)

    async def _give_back(self, message: Message, delay: float) -> None:
        try:
            await self.queue.release(message, delay)
        except WaystationError as error:
            log.warning("message %s will come again later: %s", message.id, error)


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def wait_after(receives: int) -> float:
    """Seconds before the next try of a message that failed so often."""
    return backoff(receives, first=1.0, longest=_LONGEST_WAIT)
