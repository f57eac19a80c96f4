"""Relevance in models that cannot be traced: the same maps as by their graph, and Hugging Face's models."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.explainers.test_lrp import explained
from tests.reference.small_nets import draw, seeded
from veridical.errors import NotApplicableError
from veridical.explainers import Lrp, LrpEpsilon, registry
from veridical.values.space import Space
from veridical.values.task import Task


class Turning(nn.Module):
    """Turns its answer round or not, by what the input says: no graph holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        h = self.dense(x)
        return h if x.sum() > 0 else -h


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_branch_that_was_taken_is_followed(sign):
    torch.manual_seed(0)
    model, x = Turning(), sign * torch.rand(4, 3)
    task = Task(model, x, targets=torch.tensor([0, 1, 0, 1]))
    expected = sign * x * model.dense.weight.detach()[task.targets]
    torch.testing.assert_close(LrpEpsilon(epsilon=1e-9)(task).values, expected, rtol=1e-4, atol=1e-6)


class Refused(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(4, 4)

    def forward(self, x):
        h = self.lin(x)
        if bool(h.isnan().any()):
            raise ValueError("NaN")
        if self.how == "leak":
            return self.lin((h * self.lin(h)).clone())
        if self.how == "answer":
            return h * self.lin(h)
        if self.how == "exp":
            return torch.exp(h)
        if self.how == "softmax":
            return h.softmax(-1)
        if self.how == "divide":
            return 1.0 / h
        if self.how == "batch":
            return F.batch_norm(h[..., None].expand(-1, -1, 2), None, None, training=True)[..., 0]
        h[:, :2].mul_(2.0)
        return h


@pytest.mark.parametrize(
    ("how", "named"),
    [("leak", "two activations"), ("answer", "two activations"), ("exp", "'exp'"), ("softmax", "logits"),
     ("divide", "'rdiv'|'rtruediv'"), ("batch", "mixes samples"), ("in place", "in place")],
)  # fmt: skip
def test_what_has_no_rule_is_refused_by_name(how, named):
    torch.manual_seed(6)
    task = Task(Refused(how), torch.randn(3, 4))
    with pytest.raises(NotApplicableError, match=named) as refusal:
        LrpEpsilon()(task)
    assert "gradient" in str(refusal.value)  # and it names what applies


# --- Hugging Face -----------------------------------------------------------------------------------------


def without_constants(model: nn.Module) -> nn.Module:
    """No biases, no position or class tokens: nothing but the input can receive relevance."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            constant = name.endswith(("bias", "cls_token", "position_embeddings"))
            constant |= "position_embeddings.weight" in name or "token_type" in name
            if constant:
                value.zero_()
            elif value.dim() > 1:
                value.normal_(0, value[0].numel() ** -0.5, generator=generator)
    return model.double().eval()


def image_model(name: str) -> Task:
    import transformers as hf

    torch.manual_seed(0)
    small = {"num_labels": 3}
    made = {
        "vit": lambda: hf.ViTForImageClassification(
            hf.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                         image_size=16, patch_size=4, **small)
        ),
        "resnet": lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=6, hidden_sizes=[6, 8], depths=[1, 1], layer_type="basic", **small)
        ),
        "convnext": lambda: hf.ConvNextForImageClassification(
            hf.ConvNextConfig(hidden_sizes=[6, 8], depths=[1, 1], num_stages=2, layer_scale_init_value=0.5,
                              **small)
        ),
        "mobilenet": lambda: hf.MobileNetV2ForImageClassification(
            hf.MobileNetV2Config(depth_multiplier=0.1, min_depth=8, **small)
        ),
    }  # fmt: skip
    size = 16 if name == "vit" else 32
    x = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1)).double()
    return Task(without_constants(made[name]()), x, space=Space.elements((3, size, size)))


def text_model(name: str, attention: str = "sdpa") -> Task:
    import transformers as hf

    torch.manual_seed(0)
    made = {
        "bert": lambda: hf.BertForSequenceClassification(
            hf.BertConfig(vocab_size=40, hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
                          intermediate_size=20, max_position_embeddings=12, num_labels=3,
                          attn_implementation=attention)
        ),
        "distilbert": lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(vocab_size=40, dim=12, n_layers=2, n_heads=2, hidden_dim=20,
                                max_position_embeddings=12, num_labels=3, attn_implementation=attention)
        ),
    }  # fmt: skip
    ids = torch.randint(1, 40, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    return Task(
        without_constants(made[name]()), ids, side={"attention_mask": mask}, space=Space.tokens(7, mask > 0)
    )


@pytest.mark.extras
@pytest.mark.parametrize("name", ["vit", "resnet", "convnext", "mobilenet"])
def test_image_models_of_hugging_face_keep_their_relevance(name):
    task = image_model(name)
    found = LrpEpsilon(1e-12)(task).values
    assert conserves(found, task)
    assert not conserves(vd.explain("input_x_gradient", task).values, task) or name in ("resnet", "mobilenet")
    one_by_one = torch.cat([LrpEpsilon(1e-12)(task[[i]]).values for i in range(3)])
    assert torch.allclose(found, one_by_one, rtol=1e-7, atol=1e-9)
    # the composite runs as well; where no contribution is positive, z+ has nothing to give relevance to
    assert bool(Lrp()(task).values.isfinite().all())


def conserves(values: torch.Tensor, task: Task) -> bool:
    return torch.allclose(values.sum(-1), explained(task), rtol=1e-4, atol=1e-6)


@pytest.mark.extras
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_text_models_of_hugging_face_keep_their_relevance_at_the_embeddings(name):
    task = text_model(name)
    found = LrpEpsilon(1e-12)(task).values
    assert found.shape == (3, 7)
    assert conserves(found, task)
    assert not conserves(vd.explain("input_x_gradient", task).values, task)
    assert bool((found[1, 4:] == 0).all())  # padding
    eager = text_model(name, "eager")
    assert torch.allclose(LrpEpsilon(1e-12)(eager).values, found, atol=1e-8)


class Pooled(nn.Module):
    """Convolutions without biases, an average and a residual sum: twice the input, twice the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = (
            nn.Conv2d(2, 4, 3, bias=False),
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.Linear(4, 3, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(torch.relu(self.a(x)), 2)
        return self.last((h + torch.relu(self.b(h))).mean((2, 3)))


@pytest.mark.parametrize("name", ["lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relevance_is_kept_however_small_the_activations_are(dtype: torch.dtype, name: str) -> None:
    net, rows = seeded(Pooled()).to(dtype), draw(3, 2, 10, 10).abs().to(dtype)
    explainer, first = registry.make(name), None
    for scale in (1.0, 1e-4, 1e-8):
        found = explainer(vd.Task(net, rows * scale, targets=[0, 1, 2]))
        assert found.provenance["completeness"]["largest_residual"] < (
            1e-12 if dtype == torch.float64 else 1e-4
        )
        first = found.values if first is None else first
        torch.testing.assert_close(
            found.values / scale, first, rtol=1e-3, atol=1e-4 * float(first.abs().max())
        )
