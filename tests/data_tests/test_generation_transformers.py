"""Prompts with models and tokenizers of transformers."""

from __future__ import annotations

import copy
import random

import pytest
import torch

import veridical as vd
from veridical.data import load_task
from veridical.errors import FormatError, InputError, NotApplicableError, VeridicalWarning

pytestmark = pytest.mark.extras

TEXTS = ["Ann has a cat. Bob has a dog.\n\nIt rains today.", "Tom likes tea. Sue likes cake. Ann has it."]
QUESTIONS = [" Bob has a", " Sue likes"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<end>", "<|user|>", "<|system|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([*TEXTS * 20, *QUESTIONS * 20, " dog cat cake tea ..." * 20], trainer)
    # as in SmolLM2 the token for padding is a marker of the chat
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", pad_token="<end>", additional_special_tokens=special[1:]
    )
    fast.chat_template = TEMPLATE
    return fast


def model(kind, vocabulary):
    import transformers

    torch.manual_seed(3)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=96,
            initializer_range=0.4,
        )
        return transformers.LlamaForCausalLM(config).double().eval()
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=96, initializer_range=0.4
    )
    return transformers.GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def both(request):
    words = tokenizer()
    return model(request.param, len(words)), words


@torch.no_grad()
def log_probability(net, ids, answer):
    total = 0.0
    for token in answer:
        total += float(net(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token])
        ids = [*ids, token]
    return total


def test_padding_and_foils_change_nothing(both):
    net, words = both
    task = vd.models.Generation(
        net, words, TEXTS, [" dog and cat", " cake"], foils=[" cat", " tea"], questions=QUESTIONS
    )
    assert not bool(task.side["attended"].all())
    for place, (answer, foil) in enumerate([(" dog and cat", " cat"), (" cake", " tea")]):
        ids = words(TEXTS[place] + QUESTIONS[place])["input_ids"]
        want = log_probability(net, ids, words(answer)["input_ids"]) - log_probability(
            net, ids, words(foil)["input_ids"]
        )
        assert float(task.outputs[place, 0]) == pytest.approx(want, abs=1e-8)


def without(text, sentence):
    """A prompt without one sentence, as a person would write it."""
    return {0: "{1}{2}", 1: "{0}{2}", 2: "{0}{1}"}[sentence].format(*text).rstrip(" ")


SENTENCES = [
    ["Ann has a cat. ", "Bob has a dog.\n\n", "It rains today."],
    ["Tom likes tea. ", "Sue likes cake. ", "Ann has it."],
]
ARCHITECTURES = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "GPTNeo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
               "attention_types": [[["global", "local"], 1]]},
    "GPTNeoX": {},
    "GPTJ": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Falcon": {"alibi": True},
    "Llama": {},
    "Qwen2": {},
    "Mistral": {"sliding_window": 8},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 8},
    "Phi": {},
    "Mixtral": {"num_local_experts": 2},
    "Mamba": {"state_size": 8},
    "Roberta": {"is_decoder": True, "max_position_embeddings": 98},  # its positions begin elsewhere
    "Bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    "T5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
           "decoder_start_token_id": 0},
}  # fmt: skip
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "max_position_embeddings": 96}  # fmt: skip


def network(kind, words):
    import transformers

    torch.manual_seed(3)
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": len(words)}
    shared = {} if kind in ("GPT2", "GPTNeo", "GPTJ", "Bart", "T5") else SHAPE
    config = getattr(transformers, f"{kind}Config")(**{**shared, **ends, **ARCHITECTURES[kind]})
    names = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    names |= {each: f"{each}ForConditionalGeneration" for each in ("Bart", "T5")}
    net = getattr(transformers, names.get(kind, f"{kind}ForCausalLM"))(config).eval()
    net = net if kind == "Mixtral" else net.double()  # experts are multiplied in float32 alone
    with torch.no_grad():
        for value in net.parameters():
            if value.dim() > 1:
                value.copy_(torch.randn_like(value) * 0.25)
    return net


@torch.no_grad()
def answered(net, ids, answer):
    """The log-probability of an answer by one unpadded row per token."""
    if not net.config.is_encoder_decoder:
        return log_probability(net, ids, answer)
    total, said = 0.0, [net.config.decoder_start_token_id]
    for token in answer:
        out = net(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([said]))
        total += float(out.logits[0, -1].log_softmax(-1)[token])
        said.append(token)
    return total


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_dropping_a_unit_is_asking_the_shorter_text(kind):
    """Of prompts of other lengths, and longer than the window: as text, and as the other tokens."""
    words = tokenizer()
    net = network(kind, words)
    asked = [" dog and cat", " cake"]
    for off in ("drop", "tokens"):
        task = vd.models.Generation(net, words, TEXTS, asked, questions=QUESTIONS, off=off)
        for place, sentence in ((0, 0), (0, 2), (1, 1)):
            gates = task.inputs.clone()
            gates[place, sentence] = 0
            prompt = task.prompts[place]
            ids = [t for t, u in zip(prompt.ids, prompt.unit, strict=True) if u != sentence]
            if off == "drop":
                ids = words(without(SENTENCES[place], sentence) + QUESTIONS[place])["input_ids"]
            want = answered(net, ids, words(asked[place])["input_ids"])
            found = float(task.with_inputs(gates).outputs[place, 0])
            near = 1e-3 if kind == "Mixtral" else 1e-6
            assert found == pytest.approx(want, abs=near), (off, place, sentence)


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_an_encoder_reads_gates_and_a_decoder_answers(kind, tmp_path):
    words = tokenizer()
    net = network(kind, words)
    task = vd.models.Generation(
        net, words, TEXTS, [" dog and cat", " cake"], foils=[" cat", " tea"], off="zero"
    )
    ids, embed = words(TEXTS[1])["input_ids"], net.get_encoder().get_input_embeddings()
    gates = torch.where(torch.tensor(task.prompts[1].unit) == 1, 0.5, 1.0).double()
    half = task.inputs.clone()
    half[1, 1] = 0.5
    want = 0.0
    for sign, answer in ((1, " cake"), (-1, " tea")):
        said = [net.config.decoder_start_token_id]
        for token in words(answer)["input_ids"]:
            read = {"inputs_embeds": embed(torch.tensor([ids])) * gates[None, :, None]}
            with torch.no_grad():
                out = net(**read, decoder_input_ids=torch.tensor([said]))
            want += sign * float(out.logits[0, -1].log_softmax(-1)[token])
            said.append(token)
    assert float(task.with_inputs(half).outputs[1, 0]) == pytest.approx(want, abs=1e-8)
    assert vd.explain("gradient", task).values.abs().sum() > 0
    said = vd.models.Generation(net, words, TEXTS, new_tokens=3)
    assert said.side["predicted"][0].tolist() == list(said.answers[0].tokens)
    with pytest.raises(NotApplicableError, match="attention is over"):
        vd.explain("attention_rollout", task)
    net.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    read = load_task(tmp_path, [{"prompt": text, "answer": " cake"} for text in TEXTS])
    whole = vd.models.Generation(net, words, TEXTS, [" cake"] * 2)
    torch.testing.assert_close(read.outputs, whole.outputs, atol=1e-4, rtol=0, check_dtype=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_a_trained_encoder_decoder_is_explained_by_the_sentence_it_reads(kind):
    """It learns to say what Sue has, in whichever place and among whichever others that stands."""
    words, drawn = tokenizer(), random.Random(0)
    net = network(kind, words).float().train()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)

    def example():
        thing = drawn.choice([" cat", " dog", " cake", " tea"])
        order = ["Sue has{}.", "Ann sings.", "It rains."]
        drawn.shuffle(order)
        return " ".join(order).format(thing), thing, next(i for i, text in enumerate(order) if "{}" in text)

    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True)

    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        rows = [example() for _ in range(16)]
        ids = [words(text + " Sue has")["input_ids"] for text, _, _ in rows]
        said = torch.tensor([words(thing)["input_ids"] for _, thing, _ in rows])
        read = {"input_ids": padded(ids), "attention_mask": padded([[1] * len(row) for row in ids])}
        optimiser.zero_grad()
        net(**read, labels=said).loss.backward()
        optimiser.step()
    texts, things, places = zip(*(example() for _ in range(8)), strict=True)
    task = vd.models.Generation(
        net.eval(), words, list(texts), questions=[" Sue has"] * 8, off="drop", new_tokens=1
    )
    assert tuple(answer.text for answer in task.answers) == things
    for name in ("occlusion", "exact_shapley", "lime", "reagent"):
        assert tuple(vd.explain(name, task).values.argmax(1).tolist()) == places, name


def test_a_chat_without_a_message_is_written_by_its_template(both):
    net, words = both
    chat = [
        {"role": "system", "content": "Tom likes tea."},
        {"role": "user", "content": "Ann has a cat. Bob has it."},
    ]
    task = vd.models.Generation(net, words, [chat], [" dog"], units="turn", off="drop")
    left = words.apply_chat_template(chat[1:], tokenize=False, add_generation_prompt=True)
    ids = words(left, add_special_tokens=False)["input_ids"]
    found = task.with_inputs(torch.tensor([[0.0, 1.0]])).outputs[0, 0]
    assert float(found) == pytest.approx(log_probability(net, ids, words(" dog")["input_ids"]), abs=1e-8)
    words.chat_template = (
        "{% if messages|length < 2 %}{{ raise_exception('two, please') }}{% endif %}" + TEMPLATE
    )
    with pytest.raises(InputError, match=r"two, please.*without some of its messages; say off='tokens'"):
        vd.models.Generation(net, words, [chat], [" dog"], units="turn", off="drop")
    words.chat_template = TEMPLATE


def test_a_contrast_puts_the_units_of_another_context_in(both):
    net, words = both
    other = [TEXTS[1], TEXTS[0]]
    given = {"questions": QUESTIONS, "off": "swap", "contrasts": other}
    task = vd.models.Generation(net, words, TEXTS, [" dog", " cake"], **given)
    mixed = task.with_inputs(torch.tensor([[1.0, 0, 1], [1, 1, 1]])).outputs[0, 0]
    ids = words("Ann has a cat. Sue likes cake.\n\nIt rains today." + QUESTIONS[0])["input_ids"]
    assert float(mixed) == pytest.approx(log_probability(net, ids, words(" dog")["input_ids"]), abs=1e-8)
    ids = words("Tom likes tea. Sue likes cake.\n\nAnn has it." + QUESTIONS[0])["input_ids"]
    contrast = log_probability(net, ids, words(" dog")["input_ids"])
    whole = vd.explain("exact_shapley", task).values.sum(1)
    assert float(whole[0]) == pytest.approx(float(task.outputs[0, 0]) - contrast, abs=1e-6)
    checks = vd.data.prompt_checks(task)
    assert bool(checks.random_spans.isnan().all())  # the other context has no such spans
    assert not any("without any" in flag for place in range(2) for flag in checks.flags(place))
    with pytest.raises(InputError, match="give both or neither"):
        vd.models.Generation(net, words, TEXTS, [" dog", " cake"], off="swap")


@pytest.mark.parametrize("wanted", ["perplexity", "entropy"])
def test_perplexity_and_entropy_have_their_sign_turned(both, wanted):
    net, words = both
    task = vd.models.Generation(
        net, words, TEXTS, [" dog and cat", " cake"], questions=QUESTIONS, wanted=wanted
    )
    ids, answer = words(TEXTS[0] + QUESTIONS[0])["input_ids"], words(" dog and cat")["input_ids"]
    with torch.no_grad():
        known = net(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    want = -(known.exp() * known).sum(-1).mean()
    if wanted == "perplexity":
        want = (-known.gather(1, torch.tensor(answer)[:, None]).mean()).exp()
    assert float(task.outputs[0, 0]) == pytest.approx(-float(want), abs=1e-8)
    assert vd.explain("gradient", task).values.isfinite().all()
    with pytest.raises(NotApplicableError, match="no logits"):
        vd.explain("lrp_epsilon", task)


def test_chats_switch_messages_and_never_markers(both):
    net, words = both
    chat = [
        {"role": "system", "content": "Tom likes tea."},
        {"role": "user", "content": "Ann has a cat. Bob has a dog."},
    ]
    turns = vd.models.Generation(net, words, [chat], [" dog"], units="turn")
    assert turns.prompts[0].units == ("Tom likes tea.", "Ann has a cat. Bob has a dog.")
    sentences = vd.models.Generation(net, words, [chat], [" dog"], questions=[" Bob has a"], units="sentence")
    assert sentences.prompts[0].units == ("Tom likes tea.", "Ann has a cat.", "Bob has a dog.")
    marks = [i for i, t in enumerate(turns.prompts[0].ids) if t in words.all_special_ids]
    assert {turns.prompts[0].unit[i] for i in marks} == {-1}
    bare = tokenizer()
    bare.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        vd.models.Generation(net, bare, [chat], [" dog"])


def test_folders_are_read_and_others_refused(both, tmp_path):
    net, words = both
    folder = tmp_path / "lm"
    net.float().save_pretrained(folder)
    words.save_pretrained(folder)
    net.double()

    def read():
        return vd.models.Generation.from_huggingface(folder, TEXTS, [" dog", " cake"], questions=QUESTIONS)

    task = read()
    assert task.name == "lm"
    assert task.inputs.dtype == torch.float32
    with pytest.raises(InputError, match="the model reads 96 at most"):
        vd.models.Generation.from_huggingface(folder, [TEXTS[0] * 9], [" dog"])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FormatError, match="tokenizer"):
        read()
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace(type(net).__name__, "BertForSequenceClassification"))
    with pytest.raises(NotApplicableError, match=r"expected \.\.\.ForCausalLM"):
        read()


def test_tokens_that_do_not_give_the_text_back_are_refused(both):
    net, _ = both
    words = tokenizer()
    from tokenizers import normalizers

    words.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(InputError, match="do not give its text back"):
        vd.models.Generation(net, words, TEXTS, [" dog", " cake"])


@pytest.mark.slow
def test_smollm2_reads_the_sentence_that_answers():
    task = vd.models.Generation.from_huggingface(
        vd.tasks.smollm2_file(),
        ["Anna lives in Paris. Bob lives in Rome. Carol likes tea."],
        [" Rome"],
        foils=[" Paris"],
        questions=[" Bob lives in the city of"],
        off="drop",
    )
    assert vd.explain("occlusion", task).top(0, 1)[0][0] == "Bob lives in Rome."


def test_an_answer_ends_with_any_of_the_models_end_tokens(both):
    net, words = both
    free = vd.models.Generation(net, words, TEXTS, questions=QUESTIONS, new_tokens=6).answers[0].tokens
    old = net.generation_config.eos_token_id
    try:
        net.generation_config.eos_token_id = [words.eos_token_id, free[3]]
        found = (
            vd.models.Generation(net, words, TEXTS[:1], questions=QUESTIONS[:1], new_tokens=6)
            .answers[0]
            .tokens
        )
    finally:
        net.generation_config.eos_token_id = old
    assert found == free[: free.index(free[3])]


def test_an_answer_that_would_share_a_token_with_the_prompt_is_told(both):
    net, words = both
    with pytest.warns(VeridicalWarning, match="would share a token"):
        task = vd.models.Generation(net, words, ["Ann has a c"], ["at"])
    assert task.answers[0].text == "at"


def test_curves_name_what_is_asked(both):
    net, words = both
    for wanted, label in (("log_probability", "log-probability"), ("entropy", "entropy, sign turned")):
        task = vd.models.Generation(net, words, TEXTS, [" dog", " cake"], questions=QUESTIONS, wanted=wanted)
        for name in ("deletion", "comprehensiveness", "fid_plus", "monotonicity"):
            assert label in vd.score(name, task, "random").curve.y_label


def test_gates_of_a_model_in_half_precision_keep_their_digits(both):
    net, words = both
    half = type(net)(net.config).bfloat16().eval()
    with pytest.warns(VeridicalWarning, match="computes in"):
        task = vd.models.Generation(half, words, TEXTS, [" dog", " cake"], questions=QUESTIONS)
    assert vd.explain("input_x_gradient", task).values.dtype == torch.float32


@pytest.mark.parametrize(
    "kind", ["BertForMaskedLM", "SqueezeBertForMaskedLM", "GPT2ForSequenceClassification"]
)
def test_a_model_that_reads_a_text_as_a_whole_is_told_by_its_class(kind):
    """However small its weights are: those of random ones hide that it reads ahead."""
    import transformers

    words = tokenizer()
    shape = {"vocab_size": len(words), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    if kind.startswith("Squeeze"):
        shape |= {"embedding_size": 32, "intermediate_size": 48}
    config = getattr(transformers, kind.split("For")[0] + "Config")(**shape, initializer_range=0.02)
    with pytest.raises(InputError, match=f"{kind} reads a text as a whole"):
        vd.models.Generation(getattr(transformers, kind)(config).eval(), words, TEXTS, [" dog", " cake"])


def test_a_vision_tower_is_not_taken_for_the_text(both):
    net, words = both

    class Sees(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vision_tower, self.language_model = copy.deepcopy(net), net
            self.config = net.config

        def get_input_embeddings(self):
            return self.language_model.get_input_embeddings()

        def forward(self, input_ids, attention_mask=None, position_ids=None, pixel_values=None):
            own = {"attention_mask": attention_mask, "position_ids": position_ids}
            return self.language_model(input_ids, **own)

    task = vd.models.Generation(Sees(), words, TEXTS[:1], [" dog"], questions=QUESTIONS[:1])
    for units, count in ((vd.models.Heads(), 8), (vd.models.Mlps(), 2), (vd.models.Blocks(), 2)):
        assert vd.data.switch(task, units).space.n_features == count


@pytest.mark.parametrize("kind", ["Llama", "T5"])
def test_a_matrix_of_answer_tokens_by_units_is_that_of_a_naive_loop(kind):
    words = tokenizer()
    net = network(kind, words)
    task = vd.models.Generation(
        net, words, TEXTS, [" dog and <cat>", " cake"], questions=QUESTIONS, off="drop"
    )
    found = vd.data.answer_matrix(task, "occlusion")
    answer = words(" dog and <cat>")["input_ids"]
    prompts = ["".join(SENTENCES[0]), *(without(SENTENCES[0], place) for place in range(3))]
    ids = [words(text + QUESTIONS[0])["input_ids"] for text in prompts]
    known = [[answered(net, each, answer[:n]) for each in ids] for n in range(len(answer) + 1)]
    known = torch.tensor(known, dtype=torch.float64)
    known = known.diff(dim=0)  # of each token alone
    torch.testing.assert_close(found.values, known[:, :1] - known[:, 1:], atol=1e-5, rtol=0)
    whole = vd.explain("occlusion", task).values[0]
    torch.testing.assert_close(found.values.sum(0), whole, atol=1e-6, rtol=0)
    assert len(found.tokens) == len(answer)
    assert "<cat>" not in found.to_html()
    assert "&lt;" in found.to_html()
    assert found.plot().get_title() == "occlusion"
    assert vd.data.answer_matrix(task, "lime", seed=3).values.shape == found.values.shape
    with pytest.raises(InputError, match="no prompt 2; the task has 2"):
        vd.data.answer_matrix(task, prompt=2)
