"""Letters: put into a box, noted by a watcher, sent by a queue. It brings one of everything."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from prometheus_client import Counter

from tests.toy.tables import OUTBOX, Letter, Note, letters
from waystation.errors import ConditionFailed, SettingsError
from waystation.queues import Consumer
from waystation.seam import Check, Door, Response, Running, System, Watcher, every
from waystation.settings import SystemSettings
from waystation.store import absent, append, exists, set_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router

    from waystation.queues import Message
    from waystation.seam import Call, Commands, Offer, Parts, Request
    from waystation.store import Change


class ToySettings(SystemSettings, frozen=True, kw_only=True):
    toy_greeting: Annotated[str, Meta(description="how visitors are greeted")] = "hello"


class Letters:
    def __init__(self, parts: Parts, hand_over: Offer) -> None:
        self.store = parts.store
        self.outbox = parts.queues[OUTBOX]
        self.greeting = parts.settings.of(ToySettings).toy_greeting
        self.hand_over = hand_over
        self.looked_after = 0
        self.written = Counter("waystation_toy_letters", "Letters written", registry=None)
        self.rounds = Counter("waystation_toy_rounds", "Rounds of the job", registry=None)

    async def write(self, box: str, letter_id: str) -> None:
        await self.store.put(Letter(box=box, letter_id=letter_id), when=absent())
        await self.outbox.send({"box": box, "letter_id": letter_id})
        self.written.inc()

    async def send(self, message: Message) -> None:
        ref = message.decode(dict[str, str])
        key = Letter.key(ref["box"], ref["letter_id"])
        await self.store.update(key, set_to("sent", True), when=exists())

    async def note(self, change: Change) -> None:
        """Write down every letter once, in the order they came."""
        letter = change.new
        if change.kind != "insert" or not isinstance(letter, Letter):
            return
        note = Note.key(letter.box)
        with suppress(ConditionFailed):  # it came again
            await self.store.update(
                note,
                append("letters", [letter.letter_id]),
                set_to("last", change.id),
                when=absent() | ~Note.holds(letter.letter_id),
            )

    async def look_after(self) -> None:
        self.looked_after += 1
        self.rounds.inc()

    async def greet(self, request: Request) -> Response:
        name = request.path.removeprefix("/toy/")
        text = f"{self.greeting}, {name}: {len(request.body)} bytes"
        return Response(200, text.encode(), [(b"content-type", b"text/plain; charset=utf-8")])

    async def check(self) -> str:
        if self.greeting == "go away":
            raise SettingsError("that is no greeting")
        return f"visitors are greeted with {self.greeting!r}"


def open_toy(parts: Parts) -> Running:
    toy = Letters(parts, parts.offer("relay.receive"))
    return Running(
        routers=_routers,
        provide={"toy": toy},
        doors=[Door("/toy", toy.greet, max_body=100)],
        consumers=[Consumer(toy.outbox, toy.send)],
        watchers=[Watcher("toy-notes", letters, toy.note)],
        jobs={"toy": every(60, toy.look_after)},
        tend=toy.look_after,
        checks=[Check("toy", toy.check, "set WAYSTATION_TOY_GREETING to something kind")],
        metrics=[toy.written, toy.rounds],
    )


def _routers() -> Sequence[Router]:
    from tests.toy.api import router

    return [router]


def add_commands(commands: Commands) -> None:
    toy = commands.group("toy", "letters")
    greet = toy.add("greet", _greet, help="greet somebody")
    greet.add_argument("name")
    write = toy.add("write", _write, help="write a letter, without a server")
    write.add_argument("box")
    read = toy.add("read", _read, help="read a box, from a server", calls=True)
    read.add_argument("box")


async def _greet(call: Call) -> None:
    greeting = call.settings.of(ToySettings).toy_greeting
    call.show({"greeting": greeting}, f"{greeting}, {call.options.name}")


async def _write(call: Call) -> None:
    async with call.house() as house:
        await house["toy"].write(call.options.box, "by-hand")


async def _read(call: Call) -> int:
    async with call.client() as api:
        box = await api.call("GET", f"/v1/toy/boxes/{call.options.box}")
    call.show(box, " ".join(box["letters"]))
    return 0 if box["letters"] else 1


TOY = System(
    name="toy",
    tables=[letters],
    queues=[OUTBOX],
    settings=ToySettings,
    commands=add_commands,
    open=open_toy,
)
