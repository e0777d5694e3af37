"""Scripts that stand in for SGLang where a test is of the harness, or of a router: started as a server is."""

from __future__ import annotations

import sys
from pathlib import Path

from eval.live.server import Server

# Speaks the protocol of /generate: half of every prompt is cached, answers are 900, 901, ... and take 0.1 s, a prompt
# of 13 tokens is refused, one of 14 is aborted within its stream, one of 16 is told to come later unless it is the
# third, one of 99 ends the server, one of 18 is kept waiting. One of 17 is answered by a token, then by all others
# at once. One of 300 is answered once one of 400 has come. It prints the length of each prompt, and its session.
SCRIPTED = """
import asyncio, json, os, sys
from aiohttp import web
busy, came = [], asyncio.Event()
async def generate(request):
    body = await request.json()
    prompt, answer = len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
    print("prompt", prompt, "of", body.get("session_id"), flush=True)
    if prompt == 13:
        return web.Response(status=400, text="thirteen")
    if prompt == 16:
        busy.append(prompt)
        if len(busy) != 3:
            return web.Response(status=503, text="sixteen")
    if prompt == 99:
        os._exit(1)
    if prompt == 18:
        await asyncio.sleep(30)
    if prompt == 400: came.set()
    if prompt == 300: await came.wait()
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(0.1)
    for count in range(1, answer + 1) if prompt != 17 else (1, answer):
        if prompt == 17:
            await asyncio.sleep(0.02)
        finish = {"type": "abort", "message": "fourteen"} if prompt == 14 else None
        meta = {"cached_tokens": prompt // 2, "finish_reason": finish}
        event = {"output_ids": [900 + i for i in range(count)], "meta_info": meta}
        await response.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    await response.write(b"data: [DONE]\\n\\n")
    return response
async def ok(request):
    return web.Response()
app = web.Application(client_max_size=2**24)
app.add_routes([web.post("/generate", generate), web.get("/health", ok), web.post("/flush_cache", ok)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[-1]), print=None)
"""


# As SGLang, which says so and never ends, as its scheduler goes on.
LATE = """
import time
print("[Errno 98] error while attempting to bind on address ('127.0.0.1', 46821): address already in use", flush=True)
time.sleep(600)
"""


def stand_in(script: str, *, startup_s: float = 300.0, grace_s: float = 2.0, name: str = "server") -> Server:
    return Server([], name=name, command=[sys.executable, "-c", script], startup_s=startup_s, grace_s=grace_s)


def late_at_first(late: str, then: str, mark: Path) -> str:
    """A script that is ``late`` when it is run the first time."""
    first = f"import pathlib\nmark = pathlib.Path({str(mark)!r})\nis_first = not mark.exists()\nmark.touch()"
    return f"{first}\nexec({late!r} if is_first else {then!r})"
