"""What the page refuses: other sites, addresses, too many bytes or pixels."""

import asyncio
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.demo.test_server import client, opened, upload  # noqa: F401  a fixture

guard = pytest.importorskip("laplacianformer.demo.guard", reason="the page needs gradio", exc_type=ImportError)


# ---- other sites ----


@pytest.mark.slow
@pytest.mark.parametrize("host", ["rebound.example:{port}", "example.org", "127.0.0.1.example.org:{port}", "", "[::1"])
def test_a_foreign_host_is_refused(client, running, host):  # noqa: F811
    port = running.address.rsplit(":", 1)[1].strip("/")
    for path in (running.address, f"{running.address}config", "upload"):
        answer = client.request("POST" if path == "upload" else "GET", path, headers={"host": host.format(port=port)})
        assert answer.status_code == 400, path


@pytest.mark.slow
def test_a_tunnel_from_another_port_works(client, running):  # noqa: F811
    for host in ("127.0.0.1:1234", "localhost:1234"):
        assert client.get(running.address, headers={"host": host, "origin": f"http://{host}"}).status_code == 200


FOREIGN = [
    {"origin": "https://example.org"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
]


@pytest.mark.slow
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_requests_of_other_sites_are_refused(client, running, headers):  # noqa: F811
    assert client.get(running.address, headers=headers).status_code == 403
    for path in ("call/open", "queue/join", "upload"):
        assert client.post(path, headers=headers, json={"data": []}).status_code == 403


@pytest.mark.slow
def test_a_link_to_the_page_works_and_a_frame_around_it_does_not(client, running):  # noqa: F811
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    answer = client.get(running.address, headers=link)
    assert answer.status_code == 200
    assert answer.headers["x-frame-options"] == "DENY"
    assert client.post("queue/join", headers=link, json={}).status_code == 403


# ---- addresses ----

ADDRESS = "http://192.0.2.1/image.png"  # of nobody


@pytest.mark.slow
def test_no_address_is_fetched(client, running):  # noqa: F811
    before = running.report()
    file = {"path": ADDRESS, "meta": {"_type": "gradio.FileData"}}
    own = {**file, "path": "/nothing", "url": f"{running.address}gradio_api/file=/nothing"}
    for path, sent in (
        ("call/open", {"data": [file]}),
        ("call/open", {"data": [[{"deep": {**file, "path": "HTTPS://example.invalid/x.png"}}]]}),
        ("call/v2/open", {"path": ADDRESS}),
        ("queue/join", {"data": [None, None, file], "fn_index": 1, "session_hash": "x"}),
    ):
        assert client.post(path, json=sent).status_code == 403, sent
    for path in (f"file={ADDRESS}", "file=https://example.invalid/", f"proxy={ADDRESS}"):
        assert client.get(path).status_code == 403, path
    for path in (f"file/{ADDRESS}", "file/https:%2F%2Fexample.invalid%2Fx.png", "file/HTTPS://example.invalid/"):
        for method in ("GET", "HEAD", "POST"):
            assert client.request(method, path).status_code == 403, (method, path)
    assert client.post("call/open", json={"data": [own]}).status_code == 200, "a file of the page itself has an address"
    new = [line for line in running.report()[len(before) :] if line.startswith("socket.")]
    assert not new


def status(method, path, query=b""):
    """What the guard answers to a request without a body; 200 where it lets it pass."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def request():
        sent = []
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        await guard.Guard(app, Path("nowhere"), 100)(scope, receive, send)
        return sent[0]["status"]

    return asyncio.run(request())


IN_PATHS = [
    *("file={}", "file/{}", "file/x/{}", "proxy={}", "file= {}", "file=x={}", "upload/{}", "{}", "../{}", "file/x{}"),
]
ADDRESSES = [
    *("http://192.0.2.1/", "HTTPS://x.invalid", "hTTp:x", "http%3A//x", "%68ttps://x", "%2568ttp%253a//x"),
    *("%252525252568ttp://x", "%2525252525252525252568ttp://x"),
]


@pytest.mark.parametrize("path", IN_PATHS)
def test_an_address_in_a_path_or_a_query_is_refused_for_every_method(path):
    for address in ADDRESSES:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            assert status(method, "/gradio_api/" + path.format(address)) == 403, (method, address)
        assert status("GET", "/gradio_api/deep_link", path.format(address).encode()) == 403


def test_paths_of_the_page_are_not_refused():
    for path in ("/", "/config", "/gradio_api/file=/tmp/100% of it/a.png", "/assets/https-1.js", "/static/ü%25.png"):
        assert status("GET", path, b"v=%2Fhttp%20x") == 200


# ---- sizes ----


@pytest.mark.slow
def test_an_image_of_many_pixels_is_refused_before_it_is_decoded(client, running, tmp_path):  # noqa: F811
    Image.new("L", (10_000, 10_000)).save(tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size < 200_000

    def most_memory():
        return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{running.process.pid}/status").read_text())[1])

    before = most_memory()
    assert "10000 x 10000 pixels&#44; more than 25 million" in opened(client, tmp_path / "large.png")
    assert most_memory() - before < 60_000, "kilobytes; the image alone has 100,000"


@pytest.mark.slow
def test_a_long_message_is_refused(client):  # noqa: F811
    assert client.post("queue/join", json={"data": ["x" * 2**20]}).status_code == 413


def answered(path, body, folder, *, most=100, others=()):
    """The statuses of these uploads, each sent in pieces of 10 bytes, to an app that reads all and then says 200."""

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    middleware = guard.Guard(app, folder, most)

    async def request(body):
        pieces, sent = [body[begin : begin + 10] for begin in range(0, len(body), 10)], []

        async def receive():
            await asyncio.sleep(0)
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
        await middleware(scope, receive, send)
        return sent[0]["status"]

    async def together():
        return await asyncio.gather(*(request(each) for each in (body, *others)))

    return asyncio.run(together())


def test_the_total_of_uploads_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "MOST_TOTAL_BYTES", 1000)
    monkeypatch.setattr(guard, "MOST_FORM_BYTES", 10)
    path = "/gradio_api/upload"
    assert answered(path, bytes(110), tmp_path) == [200]
    assert answered(path, bytes(111), tmp_path) == [413], "one file"
    assert 413 in answered(path, bytes(90), tmp_path, others=[bytes(90)] * 14), "those that arrive together"
    (tmp_path / "file").write_bytes(bytes(950))
    assert answered(path, bytes(60), tmp_path) == [413], "with what is there"
    assert answered(path, bytes(40), tmp_path) == [200]


def test_deep_messages_are_left_to_gradio():
    assert not guard._names_address(b"[" * 500_000, "http://localhost/")
