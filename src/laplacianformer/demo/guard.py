"""What the page's server refuses before gradio sees it: requests of other sites, addresses to fetch, too many bytes.

A page of another site can make a browser send requests to this computer. With a name that it lets point to 127.0.0.1 it
even reads the answers, but then the browser sends that name as `Host`.
"""

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse

MOST_TOTAL_BYTES = 2**30  # of the files in the folder of the page, drawn ones too; they are kept for 15 minutes
MOST_MESSAGE_BYTES = 2**20  # of a request that is not an upload
MOST_FORM_BYTES = 2**16  # of an upload, beside its file
NAMES = ("127.0.0.1", "localhost")  # with any port: that of a tunnel is another one
_ADDRESS = re.compile(r"\s*https?:", re.IGNORECASE)
_ADDRESS_IN_PATH = re.compile(rb"https?:", re.IGNORECASE)  # anywhere: no path of the page itself has one
_MOST_ENCODED = 5  # times that an address in a path is percent-encoded; the page itself does it once
_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def guards(folder: Path, most_file_bytes: int) -> list[Middleware]:
    """For the app of a page that keeps its files in this folder."""
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(NAMES), www_redirect=False),
        Middleware(Guard, folder=folder, most_file_bytes=most_file_bytes),
    ]


class TooLarge(Exception):
    """More bytes than a request may have."""


class Guard:
    """An ASGI middleware."""

    def __init__(self, app: Any, folder: Path, most_file_bytes: int) -> None:
        self.app, self.folder, self.most_file_bytes = app, folder, most_file_bytes
        self.arriving = 0  # bytes of uploads that are not finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # the page uses no other kind of connection
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if _is_foreign(scope["method"], headers):
            await PlainTextResponse("This page takes no requests of other sites.", 403)(scope, receive, send)
        elif any(_leads_elsewhere(part) for part in (scope["path"].encode(), scope.get("query_string", b""))):
            await PlainTextResponse("This page fetches nothing.", 403)(scope, receive, send)
        elif scope["path"].rstrip("/").endswith("/upload"):
            await self._upload(scope, receive, _with_headers(send))
        else:
            await self._message(scope, receive, _with_headers(send), headers)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passed on as it arrives, until it is too large."""
        there, own = _size(self.folder), 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal own
            message = await receive()
            length = len(message.get("body", b""))
            own += length
            self.arriving += length
            if own > self.most_file_bytes + MOST_FORM_BYTES or there + self.arriving > MOST_TOTAL_BYTES:
                raise TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except TooLarge:
            await PlainTextResponse("Too large: try again in 15 minutes, or a smaller file.", 413)(scope, receive, send)
        finally:
            self.arriving -= own

    async def _message(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Read whole, since an address may be anywhere in it."""
        body, more = b"", scope["method"] not in ("GET", "HEAD")
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_MESSAGE_BYTES:
                await PlainTextResponse("Too large.", 413)(scope, receive, send)
                return
        if _names_address(body, f"http://{headers.get('host')}/"):
            await PlainTextResponse("This page fetches nothing.", 403)(scope, receive, send)
            return
        replayed = False

        async def whole() -> MutableMapping[str, Any]:
            nonlocal replayed
            if replayed or not body:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, whole, send)


def _is_foreign(method: str, headers: Headers) -> bool:
    """Whether a browser says that another origin sends this. To follow a link to the page is allowed."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    if origin is not None and origin != f"http://{headers.get('host')}":
        return True
    followed = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return site in ("cross-site", "same-site") and not (followed and headers.get("sec-fetch-dest") == "document")


def _leads_elsewhere(part: bytes) -> bool:
    """Whether a path or a query has an address in it, which gradio would fetch; however often it is encoded."""
    for _ in range(_MOST_ENCODED):
        if _ADDRESS_IN_PATH.search(part):
            return True
        encoded, part = part, unquote_to_bytes(part)
        if part == encoded:
            return False
    return True


def _names_address(body: bytes, own: str) -> bool:
    """Whether JSON has an address of another server in it, which gradio would fetch as a file."""
    try:
        pending = [json.loads(body)] if body else []
    except (ValueError, RecursionError):
        return False  # gradio refuses it, too
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and _ADDRESS.match(value) and not value.startswith(own):
            return True
    return False


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # removed since it was listed
            total += path.lstat().st_size
    return total


def _with_headers(send: Send) -> Send:
    """Answers that no other page shows in a frame, and that are what they say."""

    async def extended(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return extended
