"""Django's own admin: an app of some size, with sessions, redirects, forms and static files.

    python -m tests.pages.django_app bare|fronted FOLDER [PREFIX]

It prints its address, and serves until it is killed. `fronted` has the page cache in front of it.
With a prefix it believes that it is to be found below that.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import django
import uvicorn
from django.conf import settings


def configure(folder: Path, prefix: str) -> Any:
    settings.configure(
        DEBUG=False,
        SECRET_KEY="only for tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        FORCE_SCRIPT_NAME=prefix or None,
        STATIC_URL=f"{prefix}/static/",
        LOGGING_CONFIG=None,
        USE_TZ=True,
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "django.db"}
        },
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.staticfiles",
        ],
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
    )
    django.setup()
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
    from django.core.asgi import get_asgi_application
    from django.core.management import call_command
    from django.urls import path

    global urlpatterns
    urlpatterns = [path("admin/", admin.site.urls)]
    call_command("migrate", verbosity=0)
    User.objects.create_superuser("ann", "ann@example.com", "correct horse")
    handler = ASGIStaticFilesHandler(get_asgi_application())
    handler.base_url = urlparse("/static/")  # what comes here has no prefix any more
    return handler


urlpatterns: list[Any] = []


async def serve(app: Any, fronted: bool, folder: Path) -> None:
    if fronted:
        from waystation.blobs import open_blobs
        from waystation.pages import TABLES, PageCache, PageCacheMiddleware
        from waystation.store import open_store

        store = await open_store(f"sqlite:///{folder}/pages.db", TABLES)
        cache = PageCache(store, open_blobs(f"file:{folder}/blobs"), revalidate_seconds=3_600)
        app = PageCacheMiddleware(app, cache=cache)
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    config.load()
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await serving


if __name__ == "__main__":
    kind, place, *rest = sys.argv[1:]
    sys.modules["tests.pages.django_app"] = sys.modules["__main__"]
    app = configure(Path(place), rest[0] if rest else "")
    asyncio.run(serve(app, kind == "fronted", Path(place)))
