"""A language model behind an OpenAI-compatible HTTP endpoint, with the standard library alone."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import logging
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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

    Prompts hold the inputs being explained, so a host that is not this machine is refused unless `send_data`
    says that they may leave it. The key, if there is one, is read from the environment variable
    `key_variable` at every call and lies in no field, log or cache. Failures that may pass (no connection,
    time-out, status 429 or 5xx) are tried again; replies are kept in the folder `cache`, by prompt.
    """

    url: str
    model: str
    send_data: bool = False
    key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 60.0
    retries: int = 3
    pause_s: float = 1.0
    new_tokens: int = 128
    cache: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InputError("url is http(s)://host[:port]/path, without user, password or query")
        if not self.send_data and not is_loopback(parts.hostname):
            raise InputError(
                f"{parts.hostname} is not this machine, and prompts hold the inputs that are explained; "
                "say send_data=True to send them there"
            )
        if self.timeout_s <= 0 or self.retries < 0 or self.pause_s < 0 or self.new_tokens < 1:
            raise InputError("timeout_s and new_tokens are positive, retries and pause_s not negative")
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "cache", None if self.cache is None else Path(self.cache))

    def __call__(self, prompt: str) -> str:
        kept = None if self.cache is None else self.cache / f"{self._name(prompt)}.json"
        if kept is not None and kept.is_file():
            try:
                return str(json.loads(kept.read_text(encoding="utf-8"))["reply"])
            except (ValueError, KeyError, TypeError):
                log.warning("the kept reply %s cannot be read; asking again", kept.name)
        reply = _reply_text(self._ask(prompt))
        if reply is None:
            return ""  # no text to parse: counted as a reply that explains nothing, and not kept
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            fresh = kept.with_suffix(f".{os.getpid()}.part")
            fresh.write_text(json.dumps({"reply": reply}), encoding="utf-8")
            fresh.replace(kept)
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
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                log.warning("the endpoint failed (%s); try %d of %d", problem, attempt, self.retries)
                time.sleep(self.pause_s * 2 ** (attempt - 1))
            try:
                with opener.open(request, timeout=self.timeout_s) as response:
                    answer: bytes = response.read(MOST_BYTES)
                    return answer
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
