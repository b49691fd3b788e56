"""The toy's routes."""

from __future__ import annotations

import msgspec
from litestar import Controller, Request, Router, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody  # noqa: TC002

from tests.toy.system import Letters
from tests.toy.tables import Note
from waystation.seam import OPERATORS, Principal

Toy = NamedDependency[Letters]
AnyRequest = Request[Principal, None, State]


class NewLetter(msgspec.Struct, forbid_unknown_fields=True):
    box: str
    letter_id: str


class Box(msgspec.Struct):
    letters: list[str]


class HandOver(msgspec.Struct, forbid_unknown_fields=True):
    source_id: str
    text: str


class Written(msgspec.Struct):
    id: str


class ToyController(Controller):
    path = "/v1/toy"
    tags = ("Toy",)

    @post("/letters", summary="Write a letter")
    async def write(self, data: JSONBody[NewLetter], toy: Toy) -> Written:
        await toy.write(data.box, data.letter_id)
        return Written(data.letter_id)

    @get("/boxes/{box:str}", summary="A box")
    async def read(self, box: FromPath[str], toy: Toy) -> Box:
        note = await toy.store.get(Note.key(box))
        return Box([] if note is None else note.letters)

    @post("/hand-over", summary="Give a letter to the relay")
    async def hand_over(self, data: JSONBody[HandOver], request: AnyRequest, toy: Toy) -> Written:
        receipt = await toy.hand_over(
            request.user.user_id,
            data.source_id,
            data.text.encode(),
            {"content-type": "text/plain"},
            dedupe=data.text,
        )
        return Written(receipt.id)

    @get("/everything", opt=OPERATORS, summary="What belongs to the installation")
    async def everything(self, toy: Toy) -> Box:
        return Box([])


router = Router(path="/", route_handlers=[ToyController])
