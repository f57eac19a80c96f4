"""Prompts of a model behind a server, against the same model at hand."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import veridical as vd
from tests.data_tests import test_generation_transformers as lm
from tests.reference.small_lm import Words, small_lm
from veridical.errors import InputError, ModelError, NotApplicableError

PROMPTS = ["Ann has a cat. Bob has a dog. It rains today.", "Tom likes tea. Sue likes cake. Bob sings."]
GIVEN = {"foils": [" cat", " tea"], "questions": [" Bob has a", " Sue likes"]}
ANSWERS = [" dog", " cake"]
TOKENS = Words(*PROMPTS, *GIVEN["questions"], *ANSWERS, *GIVEN["foils"], "Bob has", "Sue likes", "It rains")
MODEL = small_lm(TOKENS)


class Completions(BaseHTTPRequestHandler):
    """`/v1/completions` over a model at hand; `mode` makes it fail."""

    mode, asked, keys, names = "well", 0, [], (TOKENS, MODEL)

    def log_message(self, *args):
        pass

    def do_POST(self):
        kind = type(self)
        kind.asked += 1
        kind.keys.append(self.headers.get("Authorization"))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if kind.mode == "busy" and kind.asked % 2:
            self.send_error(429)
        elif kind.mode == "moved":
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.1:9/v1/completions")
            self.end_headers()
        elif kind.mode == "refuses":
            self.send_error(401)
        else:
            if kind.mode == "silent":
                time.sleep(1.0)
            reply = {"choices": [self.choice(i, text) for i, text in enumerate(body["prompt"])]}
            reply["choices"].reverse()
            reply["usage"] = {"total_tokens": sum(len(c["logprobs"]["tokens"]) for c in reply["choices"])}
            text = b"<html>" if kind.mode == "page" else json.dumps(reply).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

    def choice(self, index, text):
        words, model = type(self).names
        if type(self).mode == "no echo":
            known = {"tokens": [" new"], "token_logprobs": [-1.0], "top_logprobs": [{" new": -1.0}]}
            return {"index": index, "text": " new", "logprobs": known}
        ids = words.encode(text)
        with torch.no_grad():
            made = model(torch.tensor([ids]))
        known = getattr(made, "logits", made)[0].double().log_softmax(-1)
        best = known.argmax(-1).tolist()
        pieces = [words.decode([i]) for i in ids]
        values = [None, *(float(known[place, token]) for place, token in enumerate(ids[1:]))]
        tops = [None, *({words.decode([b]): float(known[p, b])} for p, b in enumerate(best[:-1]))]
        pieces, values, tops = [*pieces, words.decode([best[-1]])], [*values, -1.0], [*tops, None]
        if type(self).mode == "cut":  # characters that are several tokens come as marks
            pieces[1] = "\ufffd"
        logprobs = {"tokens": pieces, "token_logprobs": values, "top_logprobs": tops}
        return {"index": index, "text": text + pieces[-1], "logprobs": logprobs}


@contextmanager
def serving(mode="well", **settings):
    kind = type("Kind", (Completions,), {"mode": mode, "asked": 0, "keys": [], **settings.pop("own", {})})
    served = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{served.server_port}/v1"
    try:
        yield vd.models.Server(url, "small", **{"pause_s": 0.01, **settings}), kind
    finally:
        served.shutdown()
        served.server_close()


def test_prompts_of_a_server_are_judged_as_those_of_the_model_at_hand():
    here = vd.models.Generation(MODEL, TOKENS, PROMPTS, ANSWERS, off="drop", **GIVEN)
    with serving() as (server, kind):
        there = vd.models.Generation.from_server(server, PROMPTS, ANSWERS, **GIVEN)
        torch.testing.assert_close(there.outputs.double(), here.outputs, atol=1e-6, rtol=0)
        before = server.spent.texts
        for name in ("occlusion", "exact_shapley", "lime"):
            found, want = vd.explain(name, there), vd.explain(name, here)
            torch.testing.assert_close(found.values.double(), want.values, atol=1e-5, rtol=0)
            assert found.cost.rows == want.cost.rows
        table = vd.evaluate(there, ["occlusion", "random"], ["deletion", "insertion"])
        assert not table.failures
        assert server.spent.texts > before
        assert server.spent.requests == kind.asked
        assert server.spent.tokens > 0
        part = {"answer_parts": ["It"], "questions": [" Bob has a"]}
        whole = vd.models.Generation.from_server(server, PROMPTS[:1], [" dog. It"], **part)
        near = vd.models.Generation(MODEL, TOKENS, PROMPTS[:1], [" dog. It"], **part)
        assert float(whole.outputs[0, 0]) == pytest.approx(float(near.outputs[0, 0]), abs=1e-6)
        for name in ("gradient", "attention_rollout"):
            with pytest.raises(NotApplicableError):
                vd.explain(name, there)


def test_what_may_pass_is_tried_again_and_the_rest_is_told(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with serving("busy") as (server, kind):
        vd.models.Generation.from_server(server, PROMPTS, ANSWERS, **GIVEN)
        assert server.spent.requests == kind.asked
        assert set(kind.keys) == {"Bearer s3cret"}
        assert "s3cret" not in repr(server)
    for mode, said, settings in (
        ("no echo", "^the server returns no log-probabilities of the prompt .*llama.cpp", {}),
        ("cut", "^the server's tokens do not spell the text", {}),
        ("refuses", "status 401", {}),
        ("moved", "status 307", {}),
        ("page", "no JSON", {}),
        ("silent", "TimeoutError|timeout", {"timeout_s": 0.1, "retries": 1}),
        ("silent", "gave no answer", {"timeout_s": 0.2, "deadline_s": 0.1, "retries": 5}),
    ):
        with serving(mode, **settings) as (server, kind):
            with pytest.raises((ModelError, NotApplicableError), match=said) as error:
                vd.models.Generation.from_server(server, PROMPTS, ANSWERS, **GIVEN)
            assert "s3cret" not in str(error.value)
            assert kind.asked <= 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "https://models.example/v1"}, "send_data=True"),
        ({"url": "ftp://127.0.0.1"}, "http"),
        ({"url": "http://me:pw@127.0.0.1/v1"}, "without user"),
        ({"url": "http://127.0.0.1/v1", "retries": -1}, "retries"),
    ],
)
def test_prompts_leave_this_machine_only_if_asked(settings, said):
    with pytest.raises(InputError, match=said):
        vd.models.Server(model="m", **settings)


@pytest.mark.extras
def test_checks_beside_a_score_by_a_server():
    words = lm.tokenizer()
    net = lm.model("llama", len(words))
    here = vd.models.Generation(net, words, lm.TEXTS, ANSWERS, questions=lm.QUESTIONS, off="drop")
    with serving(own={"names": (words, net)}) as (server, _):
        there = vd.models.Generation.from_server(server, lm.TEXTS, ANSWERS, questions=lm.QUESTIONS)
        found, want = (vd.data.prompt_checks(each) for each in (there, here))
    assert found.compared.startswith("only off='drop' works here")
    torch.testing.assert_close(found.log_probability, want.log_probability, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.without_context, want.without_context, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.extras
def test_smollm2_behind_a_server_is_smollm2():
    from veridical.data.huggingface import causal_model

    model, words = causal_model(vd.tasks.smollm2_file())
    given = {"foils": [" Paris"], "questions": [" Bob lives in the city of"]}
    text = ["Anna lives in Paris. Bob lives in Rome. Carol likes tea."]
    here = vd.models.Generation(model, words, text, [" Rome"], off="drop", **given)
    with serving(own={"names": (words, model)}) as (server, _):
        there = vd.models.Generation.from_server(server, text, [" Rome"], **given)
        found, want = (vd.explain("exact_shapley", each).values.double() for each in (there, here))
        torch.testing.assert_close(found, want, atol=1e-3, rtol=0)
