"""A language model behind a server: log-probabilities of the prompt through `/v1/completions`."""

from __future__ import annotations

import ipaddress
import json
import os
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from torch import Tensor

from veridical.core.allowed import Count, Index, NotNegative, Positive
from veridical.core.settings import check_settings
from veridical.errors import InputError, ModelError, NotApplicableError, VeridicalError
from veridical.models.prompts import AnswerModel, Rewrite, SwitchedOff

MOST_BYTES = 2**26
"""The longest reply that is read."""


class Token(NamedTuple):
    """A token of a text: where it begins and ends, its log-probability, and the most probable one there."""

    start: int
    stop: int
    value: float
    top: str


@dataclass
class Spent:
    """What a server was asked so far."""

    requests: int = 0
    texts: int = 0
    tokens: int = 0
    """As the server counts them; 0 where it does not."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Prompts and key must not be passed on to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class Server:
    """A server with OpenAI's `/v1/completions` that returns the prompt with its log-probabilities (`echo`).

    What may pass (no connection, silence, status 429 or 5xx) is tried again. Redirects are not followed.
    """

    url: str
    """Where it is, up to /v1 and without /completions."""
    model: str
    """The model's name there."""
    send_data: bool = False
    """Whether prompts may leave this machine."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable of the key, read at every request and kept nowhere."""
    timeout_s: Positive = 60.0
    """Seconds of silence that end a try."""
    deadline_s: Positive = 300.0
    """Seconds after which no further try begins."""
    retries: Index = 3
    """Further tries."""
    pause_s: NotNegative = 1.0
    """Seconds before the second try, doubled before each further one."""
    texts: Count = 8
    """The most texts of one request."""
    spent: Spent = field(default_factory=Spent, compare=False)
    """What was asked so far."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InputError("url is http(s)://host[:port]/v1, without user, password or query")
        if not self.send_data and not _here(parts.hostname):
            raise InputError(
                f"{parts.hostname} is not this machine, and prompts hold the inputs that are explained; say "
                "send_data=True to send them there"
            )
        check_settings(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Server:
        return self  # the counts are those of all copies

    def read(self, texts: list[str]) -> list[list[Token]]:
        """The tokens of each text with their log-probabilities, but that of the first, which has none."""
        found: list[list[Token]] = []
        for at in range(0, len(texts), self.texts):
            some = texts[at : at + self.texts]
            # servers differ on whether no token may be asked for; what is added behind is not read
            body = {"model": self.model, "prompt": some, "max_tokens": 1, "echo": True, "logprobs": 1}
            reply = self._asked({**body, "temperature": 0})
            try:
                choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
                found += [_tokens(text, choice) for text, choice in zip(some, choices, strict=True)]
                self.spent.tokens += int((reply.get("usage") or {}).get("total_tokens", 0))
            except VeridicalError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise ModelError(
                    f"the server's reply is none of /completions ({type(error).__name__}: {error})"
                ) from None
            self.spent.texts += len(some)
        return found

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        secret = os.environ.get(self.key_variable, "").strip()
        if not secret.isprintable() or not secret.isascii():
            # urllib would repeat a header that it cannot send, and with it the key
            raise InputError(f"the key in {self.key_variable} holds characters that no header may have")
        host = urlsplit(self.url)
        if secret and (host.scheme == "https" or _here(host.hostname or "")):
            headers["Authorization"] = f"Bearer {secret}"
        proxies = [urllib.request.ProxyHandler({})] if _here(host.hostname or "") else []
        opener = urllib.request.build_opener(_NoRedirect(), *proxies)
        data, address = json.dumps(body).encode(), f"{self.url.rstrip('/')}/completions"
        problem, ends = "", time.monotonic() + self.deadline_s
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(self.pause_s * 2 ** (attempt - 1), max(0.0, ends - time.monotonic())))
            if time.monotonic() > ends:
                break
            self.spent.requests += 1
            try:
                request = urllib.request.Request(address, data, headers, method="POST")
                with opener.open(request, timeout=self.timeout_s) as answered:
                    text = answered.read(MOST_BYTES + 1)
                if len(text) > MOST_BYTES:
                    raise ModelError(f"the server's reply is longer than {MOST_BYTES >> 20} MiB")
                found = json.loads(text)
                return found if isinstance(found, dict) else {}
            except urllib.error.HTTPError as error:
                problem = f"status {error.code}"
                if error.code != 429 and error.code < 500:
                    break
            except ValueError:
                problem = "no JSON"
                break
            except (OSError, HTTPException) as error:
                problem = type(getattr(error, "reason", error)).__name__
        raise ModelError(
            f"the server {host.netloc} gave no answer ({problem}); check that it serves /completions, the "
            f"model '{self.model}', and the key in {self.key_variable}"
        ) from None


def _here(host: str) -> bool:
    """Whether an address is this very machine's."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tokens(text: str, choice: dict[str, Any]) -> list[Token]:
    """The tokens of a text as a choice of the reply lists them, without one that is put in front of it."""
    known = choice.get("logprobs") or {}
    names, values = known.get("tokens") or [], known.get("token_logprobs") or []
    tops = known.get("top_logprobs") or [None] * len(names)
    begin = next((n for n in (0, 1) if "".join(names[n:]).startswith(text)), None)
    if begin is None and str(choice.get("text")).startswith(text):
        raise NotApplicableError(
            "the server's tokens do not spell the text that it repeats, as where a character is cut into "
            "several tokens, so none can be found in it; write the text without such characters"
        )
    if begin is None or not any(isinstance(value, int | float) for value in values[1:]):
        raise NotApplicableError(
            "the server returns no log-probabilities of the prompt (it ignores echo=true with logprobs, as "
            "llama.cpp's does), so the probability of a given answer cannot be read; vLLM's server does"
        )
    out, at = [], 0
    for name, value, top in zip(names[begin:], values[begin:], tops[begin:], strict=True):
        if at >= len(text):
            break
        best = max(top, key=lambda name: top[name]) if isinstance(top, dict) and top else ""
        out.append(Token(at, at + len(name), float("nan") if value is None else float(value), best))
        at += len(name)
    return out


class ServedModel(AnswerModel):
    """What is asked of prompts by their texts: the tokens of the task are characters."""

    no_gradient = "a server gives no gradients"

    def __init__(self, server: Server, rewrite: Rewrite, has_foil: bool) -> None:
        super().__init__()
        self.server = server
        self.off = SwitchedOff(rewrite)
        self.has_foil = has_foil

    def extra_repr(self) -> str:
        """What outputs depend on."""
        return f"{self.server.url}, {self.server.model}, has_foil={self.has_foil}"

    def answers(self, gates: Tensor, side: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        assert self.off.rewrite is not None
        prompts = self.off.rewrite(side, gates > 0.5)
        own, said = self._judged(prompts, side["answer"], side["answered"], side["judged"])
        if not self.has_foil:
            return own, said, own
        return own - self._judged(prompts, side["foil"], side["foiled"], side["foil_judged"])[0], said, own

    def _judged(
        self, prompts: list[tuple[int, ...]], answer: Tensor, there: Tensor, judged: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log-probability of the judged part of each answer, and a number of each most probable token."""
        tails = [_text(row[keep].tolist()) for row, keep in zip(answer, there, strict=True)]
        fronts = [_text(row) for row in prompts]
        own = answer.new_zeros(len(answer), dtype=torch.float64)
        said = torch.zeros_like(answer)
        for row, tokens in enumerate(self.server.read([a + b for a, b in zip(fronts, tails, strict=True)])):
            begin = len(fronts[row])
            for token in tokens:
                at = max(0, token.start - begin)
                if token.stop <= begin or not bool(judged[row, at : token.stop - begin].any()):
                    continue
                own[row] += token.value
                said[row, at] = zlib.crc32(token.top.encode())
        return own, said


def _text(characters: list[int] | tuple[int, ...]) -> str:
    return "".join(map(chr, characters))


class Characters:
    """The tokenizer of a task whose model is a server: every character is a token."""

    def encode(self, text: str) -> list[int]:
        """The number of each character."""
        return [ord(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        """The text of these characters."""
        return _text(tokens)
