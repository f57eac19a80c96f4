"""A language model behind an OpenAI-compatible HTTP endpoint, with the standard library alone."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import logging
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from veridical.core.allowed import Count, Index, NotNegative, Positive
from veridical.core.settings import check_settings
from veridical.errors import InputError, ModelError

log = logging.getLogger("veridical")
MOST_BYTES = 2**24


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An endpoint must not pass prompts and key on to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """Answers prompts through `url`/chat/completions, at temperature 0.

    Failures that may pass (no connection, time-out, status 429 or 5xx) are tried again.
    """

    url: str
    """Where the endpoint is, without /chat/completions."""
    model: str
    """The model's name there."""
    send_data: bool = False
    """Whether prompts, which hold the inputs that are explained, may leave this machine."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable of the key, read at every call; the key lies in no field, log or cache."""
    timeout_s: Positive = 60.0
    """Seconds of silence that end a try."""
    deadline_s: Positive = 300.0
    """Seconds that end the call, tries and pauses together."""
    retries: Index = 3
    """Further tries."""
    pause_s: NotNegative = 1.0
    """Seconds before the second try, doubled before each further one."""
    new_tokens: Count = 128
    """The longest reply, in tokens."""
    cache: Path | None = None
    """A folder in which replies are kept, by prompt."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InputError("url is http(s)://host[:port]/path, without user, password or query")
        if not self.send_data and not is_loopback(parts.hostname):
            raise InputError(
                f"{parts.hostname} is not this machine, and prompts hold the inputs that are explained; "
                "say send_data=True to send them there"
            )
        check_settings(self)
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "cache", None if self.cache is None else Path(self.cache))

    def __call__(self, prompt: str) -> str:
        kept = None if self.cache is None else self.cache / f"{self._name(prompt)}.json"
        if kept is not None and kept.is_file():
            if (reply := _kept_reply(kept)) is not None:
                return reply
            log.warning("%s is damaged; asking again", kept.name)
        reply = _reply_text(self._ask(prompt))
        if reply is None:
            return ""  # no text to parse: counted as a reply that explains nothing, and not kept
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_name(f"{kept.name}.{os.getpid()}")
            part.write_text(json.dumps({"reply": reply, "sha256": _checksum(kept.stem, reply)}))
            part.replace(kept)
        return reply

    def _name(self, prompt: str) -> str:
        asked = json.dumps([self.url, self.model, self.new_tokens, prompt]).encode()
        return hashlib.blake2b(asked, digest_size=16).hexdigest()

    def _ask(self, prompt: str) -> bytes:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.new_tokens,
        }
        headers = {"Content-Type": "application/json"}
        secret = os.environ.get(self.key_variable, "").strip()
        if not secret.isprintable() or not secret.isascii():
            # urllib would repeat a header it cannot send, and with it the key
            raise InputError(f"the key in {self.key_variable} holds characters that no header may have")
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        handlers: list[Any] = [_NoRedirect()]
        if is_loopback(urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode(), headers, method="POST"
        )
        problem, ends = "", time.monotonic() + self.deadline_s
        for attempt in range(self.retries + 1):
            if attempt:
                log.warning("the endpoint failed (%s); try %d of %d", problem, attempt, self.retries)
                time.sleep(min(self.pause_s * 2 ** (attempt - 1), max(0.0, ends - time.monotonic())))
            left = ends - time.monotonic()
            if left <= 0:
                break
            try:
                return _within(left, partial(_answer, opener, request, self.timeout_s))
            except urllib.error.HTTPError as error:
                problem = f"status {error.code}"
                if error.code != 429 and error.code < 500:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem = type(getattr(error, "reason", error)).__name__
        raise ModelError(
            f"the endpoint {urlsplit(self.url).netloc} gave no answer ({problem}); check that it serves "
            f"/chat/completions, the model '{self.model}', and the key in {self.key_variable}"
        ) from None


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request, silence: float) -> bytes:
    with opener.open(request, timeout=silence) as response:
        answer: bytes = response.read(MOST_BYTES)
    return answer


def _within(seconds: float, ask: Callable[[], bytes]) -> bytes:
    """What `ask` answers, or TimeoutError: a server that drips would never pass a socket's own time-out."""
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _checksum(name: str, reply: str) -> str:
    """Of a reply and the prompt it belongs to."""
    return hashlib.sha256(f"{name} {reply}".encode()).hexdigest()


def _kept_reply(path: Path) -> str | None:
    """The reply in a cache file, or None where its checksum does not hold."""
    try:
        held = json.loads(path.read_bytes())
        return str(held["reply"]) if held["sha256"] == _checksum(path.stem, held["reply"]) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reply_text(answer: bytes) -> str | None:
    try:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None
