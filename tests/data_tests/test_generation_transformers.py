"""Prompts with models and tokenizers of transformers."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
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


def test_hidden_slots_with_renumbered_positions_are_the_shorter_text(both):
    net, words = both
    task = vd.models.Generation(
        net, words, TEXTS, [" dog", " cake"], foils=[" cat", " tea"], questions=QUESTIONS, off="drop"
    )
    for unit in range(3):
        for place in range(2):
            gates = task.inputs.clone()
            gates[place, unit] = 0
            prompt = task.prompts[place]
            ids = [t for t, u in zip(prompt.ids, prompt.unit, strict=True) if u != unit]
            want = log_probability(net, ids, words([" dog", " cake"][place])["input_ids"])
            want -= log_probability(net, ids, words([" cat", " tea"][place])["input_ids"])
            assert float(task.with_inputs(gates).outputs[place, 0]) == pytest.approx(want, abs=1e-8)


@pytest.mark.filterwarnings("ignore:the model computes in")
@pytest.mark.parametrize("kind", ["Mistral", "GPTNeo"])
def test_a_window_over_slots_is_no_window_over_the_shorter_text(kind):
    """Layers that look back so many slots still count hidden ones: dropping a unit is not what it says."""
    import transformers

    words = tokenizer()
    torch.manual_seed(3)

    def model(window):
        own = {
            "GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": window},
            "Mistral": {"num_hidden_layers": 2, "num_attention_heads": 8, "sliding_window": window},
        }
        shape = {"vocab_size": len(words), "hidden_size": 32, "max_position_embeddings": 96}
        config = getattr(transformers, f"{kind}Config")(**shape, **own[kind])
        return getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()

    def made(net, off):
        return vd.models.Generation(net, words, TEXTS, [" dog", " cake"], questions=QUESTIONS, off=off)

    net = model(8)
    with pytest.raises(InputError, match="look back 8 tokens"):
        made(net, "fill").with_off("drop")
    with pytest.raises(InputError, match="look back 8 tokens"):
        made(net.bfloat16(), "drop")
    # a prompt within the window has nothing beyond it
    task = made(model(64), "drop")
    assert task.off == "drop"


def test_heads_of_transformers_are_found(both):
    net, words = both
    task = vd.models.Generation(net, words, TEXTS[:1], [" dog"], foils=[" cat"], questions=QUESTIONS[:1])
    switched = vd.data.switch(task, vd.models.Heads())
    assert switched.space.n_features == 8
    assert torch.equal(switched.predictor.outputs(switched.inputs, switched.side), task.outputs)
    falls = vd.explain("occlusion", switched).values
    assert bool((falls != 0).all())
    assert vd.data.switch(task, vd.models.Blocks()).space.n_features == 2
    assert vd.data.switch(task, vd.models.Mlps()).space.n_features == 2


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
