"""Lines of Codex's rollouts, as releases since late 2025 write them."""

from __future__ import annotations

from typing import Any

__all__ = ["SECRET", "at", "counted", "line", "message", "rollout"]

SECRET = "the password of alice is hunter2"


def at(seconds: float) -> str:
    """A time, so many seconds after the start of the log."""
    return f"2026-02-19T02:{int(seconds) // 60:02d}:{seconds % 60:06.3f}Z"


def line(seconds: float, kind: str, **payload: Any) -> dict[str, Any]:
    """A line of a kind, with its payload."""
    return {"timestamp": at(seconds), "type": kind, "payload": payload}


def counted(seconds: float, total: int, prompt: int, cached: int, output: int) -> dict[str, Any]:
    """The count of a call: tokens of the session so far, of its prompt, of those cached, of its answer."""
    last = {
        "input_tokens": prompt,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "total_tokens": prompt + output,
    }
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last, "model_context_window": 258_400}
    return line(seconds, "event_msg", type="token_count", info=info, rate_limits=None)


def message(seconds: float, role: str, text: str) -> dict[str, Any]:
    """A message."""
    kind = "output_text" if role == "assistant" else "input_text"
    return line(seconds, "response_item", type="message", role=role, content=[{"type": kind, "text": text}])


def rollout(name: str = "thread", **meta: Any) -> list[dict[str, Any]]:
    """A user asks, a tool is called and answers, the turn ends: two calls."""
    return [
        line(0, "session_meta", id=name, cwd="/home/alice", cli_version="0.99", **meta),
        line(0, "turn_context", model="gpt-5.2", effort="high"),
        message(1, "user", SECRET),
        line(1, "event_msg", type="user_message", message=SECRET),
        line(4, "response_item", type="reasoning", summary=[], encrypted_content="x"),
        line(5, "response_item", type="function_call", name="shell", arguments="{}", call_id="1"),
        counted(5.5, 13_208, 12_880, 9_600, 328),
        counted(5.6, 13_208, 12_880, 9_600, 328),
        line(9, "response_item", type="function_call_output", call_id="1", output="r" * 400),
        message(11, "assistant", "done"),
        counted(11.5, 26_580, 13_320, 13_200, 52),
    ]
