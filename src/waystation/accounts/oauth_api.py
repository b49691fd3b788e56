"""Routes of sign-in with a provider."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, Request, Response, Router, get
from litestar.datastructures import Cookie, State
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from litestar.response import Redirect

from waystation.accounts.api import address_of
from waystation.accounts.oauth import SignInElsewhere
from waystation.accounts.tokens import Tokens  # noqa: TC001
from waystation.errors import Unauthenticated
from waystation.seam import PUBLIC

_COOKIE = "waystation_signin"
_PATH = "/v1/auth"
_SECONDS = 600

Service = NamedDependency[SignInElsewhere]
Text = Annotated[str | None, QueryParameter(max_length=2000)]


class OAuthController(Controller):
    """Off until a provider is configured."""

    path = _PATH
    tags = ("Accounts",)
    opt = PUBLIC

    @get("/{provider:str}/start", status_code=302, summary="Sign in with GitHub or Google")
    async def start(
        self, provider: FromPath[str], request: Request[None, None, State], elsewhere: Service
    ) -> Redirect:
        url, cookie = await elsewhere.begin(provider, address_of(request.client))
        kept = Cookie(
            key=_COOKIE,
            value=cookie,
            path=_PATH,
            max_age=_SECONDS,
            httponly=True,
            samesite="lax",
            secure=elsewhere.secure,
        )
        return Redirect(url, cookies=[kept])

    @get("/{provider:str}/callback", summary="Where the provider sends the browser back to")
    async def callback(
        self,
        provider: FromPath[str],
        request: Request[None, None, State],
        elsewhere: Service,
        code: Text = None,
        state_given: Annotated[str | None, QueryParameter(name="state", max_length=200)] = None,
        error: Text = None,
    ) -> Response[Tokens]:
        if error is not None or code is None or state_given is None:
            raise Unauthenticated("the sign-in was not completed")
        tokens = await elsewhere.finish(provider, code, state_given, request.cookies.get(_COOKIE))
        return Response(tokens, cookies=[Cookie(key=_COOKIE, path=_PATH, max_age=0)])


router = Router(path="/", route_handlers=[OAuthController])
