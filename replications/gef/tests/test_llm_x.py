"""LLM-x: prompts, replies, matching, and a real HTTP endpoint on this machine."""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import veridical as vd
from replications.gef.llm import Endpoint, LLMx, LocalModel
from replications.gef.llm.endpoint import is_loopback
from replications.gef.llm.prompt import WORDINGS, build_prompt, how_much, parse_reply

pytestmark = pytest.mark.slow
WORDS = ["free", "prize", "call", "now", "dinner", "tonight", "mum", "love", "##ly", "!"]


class Spam(nn.Module):
    """A bag of words: some words speak for spam, others against it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 1)
        with torch.no_grad():
            self.embed.weight.copy_(torch.tensor([2, 2, 1, 0.5, -1, -1, -2, -2, 0, 0.1])[:, None])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        score = self.embed(tokens).sum(1)
        return torch.cat([-score, score], 1)


def spam_task() -> vd.Task:
    tokens = torch.tensor([[0, 1, 2, 3, 9], [6, 7, 8, 4, 5], [0, 2, 6, 4, 5]])
    valid = torch.ones(3, 5, dtype=torch.bool)
    valid[2, 4] = False
    names = [[WORDS[i] for i in row] for row in tokens.tolist()]
    return vd.Task(Spam(), tokens, space=vd.Space.tokens(5, valid, names))


def llm(generate: Any, **settings: Any) -> LLMx:
    return LLMx(generate, about="classify sms messages", labels=("ham", "spam"), k=2, **settings)


# --- prompts and replies --------------------------------------------------------------------------------


def ask(**changes: Any) -> str:
    settings = {"before": 0.9, "after": 0.4, "share": 0.5, "k": 5, "wording": 0, **changes}
    return build_prompt("win a prize", "classify sms messages", ("ham", "spam"), 1, **settings)


def test_prompt_says_what_spec_demands() -> None:
    prompt = ask()
    for part in ("classify sms messages", "ham, spam", "0.900 before", "0.400 now", "less certain"):
        assert part in prompt
    assert "moderately" in prompt
    assert "win a prize" in prompt
    assert "more certain" in ask(after=0.95)
    clean = ask(before=0.9, after=0.9, share=0.0)
    assert "unchanged" in clean
    assert "before" not in clean.split("Text:")[0].replace("below", "")


def test_strength_goes_by_thirds() -> None:
    assert [how_much(s) for s in (0.1, 1 / 3, 0.5, 2 / 3, 0.9, 1.0)] == [
        "slightly",
        "slightly",
        "moderately",
        "moderately",
        "heavily",
        "heavily",
    ]


def test_every_wording_is_another_prompt() -> None:
    assert len({ask(wording=w) for w in range(WORDINGS)}) == WORDINGS
    assert ask(wording=WORDINGS) == ask(wording=0)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('{"tokens": {"1": "Free!", "2": "prize"}}', ["free", "prize"]),
        ('Sure! ```json\n{"2": "prize", "1": "free"}\n```', ["free", "prize"]),
        ('["FREE", "prize", "call", "now"]', ["free", "prize", "call"]),
        ('[{"rank": 2, "token": "b"}, {"rank": 1, "token": "a"}]', ["a", "b"]),
        ('{"answer": {"ranking": ["x", "x", "y"]}}', ["x", "y"]),
        ('{"1": "free prize call now!", "2": "..."}', ["free", "prize", "call"]),
        ('[{"id": "1", "text": "mum"}]', ["mum"]),
        ('{"bad": oops} then {"1": "ok"}', ["ok"]),
        ("free, prize", None),
        ("{}", None),
        ('{"1": 3}', None),
        ('{"tokens": "', None),
        ("[" * 3000, None),
        ("", None),
    ],
)
def test_replies_are_read(reply: str, words: list[str] | None) -> None:
    assert parse_reply(reply, 3) == words


# --- the explainer --------------------------------------------------------------------------------------


def test_words_become_a_binary_map_over_valid_tokens() -> None:
    task = spam_task()
    maps = llm(lambda prompt: '{"1": "Mum", "2": "tonight"}')(task).values
    assert bool(maps[0].isnan().all())  # nothing of this text is named
    assert maps[1:].tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 0, 0]]


def test_a_tokenizer_matches_pieces() -> None:
    class Pieces:
        def encode(self, text: str) -> list[int]:
            return {"lovely": [7, 8], "free": [0]}.get(text, [])

        def decode(self, ids: list[int]) -> str:
            return " ".join(WORDS[i] for i in ids)

    maps = llm(lambda prompt: '["lovely", "free"]', tokenizer=Pieces())(spam_task()).values
    assert maps.tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]


CORPUS = [
    "You have won a FREE prize, call now!",
    "Free entry: text WIN to claim your prize",
    "see you at lunch, I won't be late",
    "call me when you're free, lovely",
]


class Trained:
    """A tokenizer of the kind that a language model comes with."""

    def __init__(self, kind: str) -> None:
        tokenizers = pytest.importorskip("tokenizers")
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if kind == "byte-level BPE":
            self.own = tokenizers.Tokenizer(models.BPE())
            self.own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            self.own.decoder = decoders.ByteLevel()
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
        elif kind == "SentencePiece":
            self.own = tokenizers.Tokenizer(models.Unigram())
            self.own.pre_tokenizer = pre_tokenizers.Metaspace()
            self.own.decoder = decoders.Metaspace()
            trainer = trainers.UnigramTrainer(
                vocab_size=80, unk_token="<unk>", show_progress=False, special_tokens=["<unk>"]
            )
        else:
            self.own = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
            self.own.normalizer = tokenizers.normalizers.Lowercase()
            self.own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            self.own.decoder = decoders.WordPiece()
            trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False)
        self.own.train_from_iterator(CORPUS, trainer)
        self.unk_token_id = self.own.token_to_id("<unk>")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self.own.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.own.decode(ids)
        return text


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE", "SentencePiece"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("you won a FREE prize", "free"),
        ("Free entry today", "free"),
        ("call me when free", "free"),
        ("claim your prize, now", "prize"),
    ],
)
def test_words_are_found_whatever_the_tokenizer_makes_of_spaces(kind: str, text: str, word: str) -> None:
    tokenizer = Trained(kind)
    ids = tokenizer.encode(text)
    marked = llm(lambda prompt: "", tokenizer=tokenizer)._matched([word], [*ids, None, None])
    assert marked[-2:].tolist() == [0.0, 0.0]
    chosen = [token for token, one in zip(ids, marked.tolist(), strict=False) if one]
    assert word in tokenizer.decode(chosen).lower()
    assert len(tokenizer.decode(chosen).strip()) <= len(word) + 1
    nothing = llm(lambda prompt: "", tokenizer=tokenizer)._matched(["qqq"], ids)
    assert float(nothing.sum()) == 0


def test_a_reply_that_names_nothing_of_the_text_is_no_explanation() -> None:
    """A map of zeros would be one that does not move."""
    scores = vd.score("fast_gef", spam_task(), llm(lambda prompt: '["zebra"]'), draws=1, path=(0.1, 0.3, 0.6))
    assert bool(scores.values.isnan().all())
    assert scores.flagged == {"no explanation": len(scores)}
    assert scores.details["maps_missing"].tolist() == [3] * len(scores)


def test_replies_that_cannot_be_read_are_nan_and_counted() -> None:
    task = spam_task()
    sometimes = llm(lambda prompt: "no idea" if "mum" in prompt and "free" in prompt else '["free", "mum"]')
    explanation = sometimes(task)
    assert explanation.missing.tolist() == [False, False, True]
    scores = vd.score(vd.gef.FastGEF(draws=1, path=(0.1, 0.5, 1.0)), task, sometimes)
    assert scores.flagged["no explanation"] == 1
    assert bool(scores.values[2].isnan())


def test_the_model_is_told_certainty_and_level_in_each_world() -> None:
    task = spam_task()
    seen: list[str] = []

    def listen(prompt: str) -> str:
        seen.append(prompt)
        return '["free"]'

    vd.score(vd.gef.FastGEF(draws=1, path=(0.1, 0.5, 1.0)), task, llm(listen))
    assert len(seen) == 3 * 4
    assert all("unchanged" in prompt for prompt in seen[:3])
    for level, word in ((1, "slightly"), (2, "moderately"), (3, "heavily")):
        assert all(word in prompt for prompt in seen[3 * level : 3 * level + 3])
    before = task.probabilities(task.outputs).gather(1, task.targets[:, None])[:, 0]
    assert f"{float(before[0]):.3f} before" in seen[3]
    # the same synonyms in every world: the words of the question do not move the answer
    openings = [{prompt.split(" was trained")[0] for prompt in seen[i::3]} for i in range(3)]
    assert all(len(names) == 1 for names in openings)


def test_another_seed_words_it_otherwise() -> None:
    task = spam_task()
    explainer = llm(lambda prompt: "")
    assert explainer.prompts(task, vd.core.Key(0)) == explainer.prompts(task, vd.core.Key(0))
    assert explainer.prompts(task, vd.core.Key(0)) != explainer.prompts(task, vd.core.Key(1))


def test_the_order_of_the_words_may_vary_and_the_words_do_not() -> None:
    task = spam_task()
    texts = [llm(str, shuffled=shuffled).prompts(task) for shuffled in (False, True)]
    told = [[prompt.split("Text: ")[1].split("\n\n")[0].split() for prompt in each] for each in texts]
    assert told[0] != told[1]
    assert [sorted(words) for words in told[0]] == [sorted(words) for words in told[1]]
    assert texts[1] == llm(str, shuffled=True).prompts(task)


def test_settings_are_plain_and_mistakes_are_told() -> None:
    json.dumps(llm(Endpoint("http://localhost:1/v1", "m")).to_json())
    with pytest.raises(vd.errors.NotApplicableError, match="3 labels"):
        LLMx(str, about="x", labels=("a", "b", "c"))(spam_task())
    with pytest.raises(vd.errors.InputError, match="k is a whole number from 1"):
        LLMx(str, about="x", labels=("a", "b"), k=0)


# --- the endpoint ---------------------------------------------------------------------------------------


class Server:
    """A loopback server that answers by a list of (status, body), and remembers what it was asked."""

    def __init__(self) -> None:
        self.plan: list[tuple[int, bytes]] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append({"path": self.path, **json.loads(body)})
                outer.headers.append(dict(self.headers))
                status, answer = outer.plan.pop(0) if outer.plan else (200, said('["free"]'))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://localhost:9/elsewhere")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


def said(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def test_endpoint_is_asked_at_temperature_zero(server: Server) -> None:
    assert Endpoint(server.url + "/", "small", pause_s=0)("hello") == '["free"]'
    (asked,) = server.asked
    assert asked["path"] == "/v1/chat/completions"
    assert asked["temperature"] == 0
    assert asked["model"] == "small"
    assert asked["messages"] == [{"role": "user", "content": "hello"}]


def test_failures_that_pass_are_tried_again_and_others_are_not(server: Server) -> None:
    server.plan = [(503, b""), (429, b""), (200, said("ok"))]
    assert Endpoint(server.url, "m", pause_s=0)("a") == "ok"
    assert len(server.asked) == 3
    server.plan = [(400, b"bad"), (200, said("never"))]
    with pytest.raises(vd.errors.ModelError, match="status 400"):
        Endpoint(server.url, "m", pause_s=0)("b")
    assert len(server.asked) == 4
    server.plan = [(302, b"")]
    with pytest.raises(vd.errors.ModelError, match="status 302"):
        Endpoint(server.url, "m", pause_s=0)("c")


def test_no_answer_is_an_error_that_names_the_host(server: Server) -> None:
    server.plan = [(500, b"")] * 3
    with pytest.raises(vd.errors.ModelError, match=r"127\.0\.0\.1"):
        Endpoint(server.url, "m", retries=2, pause_s=0)("a")
    assert len(server.asked) == 3
    with pytest.raises(vd.errors.ModelError, match="no answer"):
        Endpoint("http://127.0.0.1:9/v1", "m", retries=0, timeout_s=2)("a")


def test_slow_answers_time_out(server: Server) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(vd.errors.ModelError, match=r"[Tt]ime"):
            Endpoint(url, "m", timeout_s=0.2, retries=0)("a")


@pytest.mark.parametrize("opening", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_a_server_that_drips_is_left_at_the_deadline(opening: bytes) -> None:
    import socket
    import threading
    import time

    with socket.create_server(("127.0.0.1", 0)) as slow:
        ended = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                client, _ = slow.accept()
                client.sendall(opening)
                while not ended.wait(0.05):
                    client.sendall(b"H")

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(vd.errors.ModelError, match="TimeoutError"):
            Endpoint(f"http://127.0.0.1:{slow.getsockname()[1]}", "m", deadline_s=0.5, retries=3)("a")
        assert time.monotonic() - began < 60
        ended.set()


def test_replies_are_kept_by_prompt(server: Server, tmp_path: Path) -> None:
    endpoint = Endpoint(server.url, "m", cache=tmp_path / "kept", pause_s=0)
    server.plan = [(200, said("one")), (200, said("two")), (200, said("three"))]
    assert [endpoint("a"), endpoint("a"), endpoint("b")] == ["one", "one", "two"]
    assert Endpoint(server.url, "other", cache=tmp_path / "kept")("a") == "three"
    assert len(server.asked) == 3
    for file in (tmp_path / "kept").glob("*.json"):
        file.write_text("{")
    server.plan = [(200, said("again"))]
    assert endpoint("a") == "again"
    # a reply in another's place is not taken for it
    server.plan = [(200, said("c's own"))]
    kept = tmp_path / "kept" / f"{endpoint._name('c')}.json"
    kept.write_bytes((tmp_path / "kept" / f"{endpoint._name('a')}.json").read_bytes())
    assert endpoint("c") == "c's own"


@pytest.mark.parametrize("body", [b"not json", b"{}", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_malformed_answers_count_as_unreadable(server: Server, tmp_path: Path, body: bytes) -> None:
    server.plan = [(200, body)]
    endpoint = Endpoint(server.url, "m", cache=tmp_path, pause_s=0)
    explanation = llm(endpoint)(spam_task()[:1])
    assert bool(explanation.missing.all())
    assert not list(tmp_path.iterdir())


def test_the_key_is_sent_and_lies_nowhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-very-secret")
    endpoint = Endpoint(server.url, "m", key_variable="TEST_KEY", cache=tmp_path, pause_s=0, retries=1)
    server.plan = [(500, b""), (200, said("ok"))]
    with caplog.at_level(logging.DEBUG):
        endpoint("a")
    assert server.headers[-1]["Authorization"] == "Bearer sk-very-secret"
    kept = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "sk-very-secret" not in caplog.text + kept + repr(endpoint) + json.dumps(llm(endpoint).to_json())
    assert "500" in caplog.text
    monkeypatch.setenv("TEST_KEY", "sk-very\nsecret")
    with pytest.raises(vd.errors.InputError) as error:
        endpoint("b")
    assert "sk-very" not in str(error.value)


def test_data_leaves_this_machine_only_if_asked() -> None:
    with pytest.raises(vd.errors.InputError, match="send_data=True"):
        Endpoint("https://api.example.com/v1", "m")
    assert Endpoint("https://api.example.com/v1", "m", send_data=True).send_data
    for url in ("ftp://localhost/", "http:///v1", "http://user:pw@localhost/v1", "localhost:80"):
        with pytest.raises(vd.errors.InputError, match="url is http"):
            Endpoint(url, "m")
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("127.0.0.1.example.com")


def test_a_score_through_the_endpoint(server: Server) -> None:
    metric = vd.gef.FastGEF(draws=1, path=(0.1, 0.5, 1.0))
    scores = vd.score(metric, spam_task(), llm(Endpoint(server.url, "m")))
    assert len(server.asked) == 3 * 4
    assert scores.flagged == {"the explanation does not move": 2, "no explanation": 1}


@pytest.mark.extras
@pytest.mark.slow
def test_a_small_language_model_answers() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    file = vd.tasks.smollm2_file()
    reply = LocalModel(str(file.parent), gguf_file=file.name, new_tokens=8)("Say hello.")
    assert isinstance(reply, str)
    assert reply.strip()


class Letters:
    """A tokenizer whose tokens are letters."""

    pad_token_id, eos_token_id = 0, 0

    def __call__(self, text: str, **_: Any) -> Any:
        rows = torch.tensor([[ord(letter) for letter in text]])
        return type("Encoded", (dict,), {"to": lambda self, _: self})(input_ids=rows)

    def decode(self, row: torch.Tensor, **_: Any) -> str:
        return "".join(map(chr, row.tolist()))


class Parrot:
    """A model that goes on with a fixed text, a letter at a time, until it is stopped."""

    device = torch.device("cpu")
    text = 'free", "2": "win"}} and so on'

    def generate(
        self, input_ids: torch.Tensor, max_new_tokens: int, stopping_criteria: Any = (), **_: Any
    ) -> torch.Tensor:
        for letter in self.text[:max_new_tokens]:
            input_ids = torch.cat([input_ids, torch.tensor([[ord(letter)]])], 1)
            if any(bool(stop(input_ids, None).all()) for stop in stopping_criteria):
                break
        return input_ids


def test_a_local_reply_can_be_begun_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replications.gef.llm.local._loaded", lambda *_: (Letters(), Parrot()))
    model = LocalModel("somewhere", begin='{"tokens": {"1": "', stop="}")
    assert model("Which words?") == '{"tokens": {"1": "free", "2": "win"}'
    assert parse_reply(model("Which words?"), 5) == ["free", "win"]
    assert LocalModel("somewhere", new_tokens=4)("Which words?") == "free"
    for wrong in ({"new_tokens": 0}, {"stop": ""}, {"repetition_penalty": 0.0}):
        with pytest.raises(vd.errors.InputError):
            LocalModel("somewhere", **wrong)  # type: ignore[arg-type]
