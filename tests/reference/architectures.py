"""Small networks of random weights, each built as the architecture it is named after is commonly written."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from veridical.models.predictor import Plan

SIZE = 16


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    """As torchvision writes it: the identity in eval mode."""
    if not training or p == 0.0:
        return x
    raise AssertionError("only eval mode is explained")


def conv(i: int, o: int, k: int = 3, s: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o))


class ResidualBlock(nn.Module):
    """One ReLU that runs twice, in place, the second time behind the sum."""

    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.first, self.second, self.relu = conv(i, o, s=s), conv(o, o), nn.ReLU(inplace=True)
        self.down = conv(i, o, 1, s) if i != o else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(self.relu(self.first(x)))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class Headed(nn.Module):
    """Features, a mean over places, and a linear head."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.pool, self.head = features, nn.AdaptiveAvgPool2d(1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.features(x)), 1))


def resnet() -> nn.Module:
    stem = nn.Sequential(conv(3, 6), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return Headed(nn.Sequential(stem, ResidualBlock(6, 6, 1), ResidualBlock(6, 8, 2)), 8)


def vgg() -> nn.Module:
    def stage(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]

    head = [nn.Linear(6 * 16, 8), nn.ReLU(True), nn.Dropout(), nn.Linear(8, 3)]
    return nn.Sequential(*stage(3, 5), *stage(5, 6), nn.AdaptiveAvgPool2d(4), nn.Flatten(), *head)


class DenseNet(nn.Module):
    """Norm, ReLU and convolution over all that came before; a functional ReLU at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(6)])
        self.convs = nn.ModuleList([nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(6, 2, 3, padding=1)])
        self.last, self.head = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = [F.avg_pool2d(self.stem(x), 2)]
        for norm, layer in zip(self.norms, self.convs, strict=True):
            seen.append(layer(F.relu(norm(torch.cat(seen, 1)), inplace=True)))
        out = F.relu(self.last(torch.cat(seen, 1)), inplace=True)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1))


class Inception(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.one, self.three, self.pool = conv(i, 3, 1), conv(i, 3), conv(i, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        ways = [self.one(x), self.three(x), self.pool(F.max_pool2d(x, 3, 1, 1, ceil_mode=True))]
        return torch.cat([F.relu(way, inplace=True) for way in ways], 1)


def googlenet() -> nn.Module:
    return Headed(nn.Sequential(conv(3, 4, s=2), nn.ReLU(), Inception(4), Inception(8)), 8)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, gate: type[nn.Module]) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1), gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """Wide, depthwise, squeeze and excite, narrow, a residual sum that training sometimes drops."""

    def __init__(self, act: type[nn.Module], gate: type[nn.Module] | None) -> None:
        super().__init__()
        excite = nn.Identity() if gate is None else SqueezeExcite(8, gate)
        self.body = nn.Sequential(conv(4, 8, 1), act(), conv(8, 8, groups=8), act(), excite, conv(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + stochastic_depth(self.body(x), 0.2, self.training)


def mobilenet() -> nn.Module:
    return Headed(
        nn.Sequential(conv(3, 4, s=2), nn.ReLU6(), Inverted(nn.ReLU6, None), conv(4, 8, 1), nn.ReLU6()), 8
    )


def efficientnet() -> nn.Module:
    body = nn.Sequential(conv(3, 4, s=2), nn.SiLU(), Inverted(nn.SiLU, nn.Sigmoid), conv(4, 8, 1), nn.SiLU())
    return Headed(body, 8)


class ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.LayerNorm(6)
        self.wide, self.narrow = nn.Linear(6, 12), nn.Linear(12, 6)
        self.scale = nn.Parameter(torch.full((6, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        h = self.narrow(F.gelu(self.wide(h))).permute(0, 3, 1, 2)
        return x + stochastic_depth(self.scale * h, 0.1, self.training)


def convnext() -> nn.Module:
    return Headed(nn.Sequential(nn.Conv2d(3, 6, 2, 2), ConvNextBlock(), ConvNextBlock()), 6)


def groupnorm() -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU()
    )
    return Headed(body, 6)


class UNet(nn.Module):
    """Down, up by a transposed convolution, a join; the mean over places is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = conv(3, 4), conv(4, 6)
        self.up, self.join = nn.ConvTranspose2d(6, 4, 2, 2), conv(8, 4)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.down(x))
        low = F.relu(self.low(F.max_pool2d(high, 2)))
        both = F.relu(self.join(torch.cat([high, self.up(low)], 1)))
        return self.head(both).mean((2, 3))


class Vit(nn.Module):
    """As torchvision's: patches by a convolution, a class token, nn.MultiheadAttention, norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
        self.place = nn.Parameter(torch.zeros(1, 17, 8))
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(5)])
        self.attention = nn.ModuleList([nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)]
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.place
        for i in range(2):
            n = self.norms[2 * i](h)
            h = h + self.attention[i](n, n, n, need_weights=False)[0]
            h = h + self.mlp[i](self.norms[2 * i + 1](h))
        return self.head(self.norms[4](h)[:, 0])


class Swin(nn.Module):
    """Attention within windows, the second time shifted, on channels last, as torchvision writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])
        self.qkv = nn.ModuleList([nn.Linear(8, 24) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.bias = nn.Parameter(torch.zeros(2, 16, 16))
        self.head = nn.Linear(8, 3)

    def attend(self, x: Tensor, i: int) -> Tensor:
        n, h, w, c = x.shape
        x = torch.roll(x, (-2 * i, -2 * i), (1, 2))
        x = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv[i](x).reshape(len(x), 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        weights = F.softmax((q * (c // 2) ** -0.5).matmul(k.transpose(-2, -1)) + self.bias, -1)
        x = self.out[i](weights.matmul(v).transpose(1, 2).reshape(len(x), 16, c))
        x = x.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, (2 * i, 2 * i), (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).permute(0, 2, 3, 1)
        for i in range(2):
            h = h + stochastic_depth(self.attend(self.norms[i](h), i), 0.1, self.training)
        return self.head(self.norms[2](h).permute(0, 3, 1, 2).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.transpose(1, 2))[0][:, -1])


class Tcn(nn.Module):
    """Dilated causal convolutions with residual sums."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3, dilation=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(F.pad(x, (2, 0))))
        h = h + F.relu(self.second(F.pad(h, (4, 0))))
        return self.head(h[:, :, -1])


class Encoder(nn.Module):
    """nn.TransformerEncoder over tokens, which asks how many rows there are; the mean is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        return self.head(self.body(h).sum(1) / (h.shape[1] if len(h) else 1))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.relu(self.bag(ids)))


def table() -> nn.Module:
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def hugging_face(kind: str) -> nn.Module:
    import transformers as hf

    text = {"vocab_size": 20, "num_labels": 3}
    bert = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    if kind == "bert":
        config = hf.BertConfig(max_position_embeddings=12, **text, **bert)
        return hf.BertForSequenceClassification(config)
    if kind == "roberta":
        config = hf.RobertaConfig(max_position_embeddings=16, pad_token_id=0, **text, **bert)
        return hf.RobertaForSequenceClassification(config)
    if kind == "distilbert":
        config = hf.DistilBertConfig(
            dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=12, **text
        )
        return hf.DistilBertForSequenceClassification(config)
    if kind == "gpt2":
        config = hf.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=12, pad_token_id=0, **text)
        return hf.GPT2ForSequenceClassification(config)
    if kind == "llama":
        config = hf.LlamaConfig(
            num_key_value_heads=1, max_position_embeddings=12, pad_token_id=0, **text, **bert
        )
        return hf.LlamaForSequenceClassification(config)
    config = hf.ViTConfig(image_size=SIZE, patch_size=4, num_labels=3, **bert)
    return hf.ViTForImageClassification(config)


CONVOLUTIONAL: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet,
    "vgg": vgg,
    "densenet": DenseNet,
    "googlenet": googlenet,
    "mobilenet": mobilenet,
    "efficientnet": efficientnet,
    "convnext": convnext,
    "groupnorm": groupnorm,
    "unet": UNet,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "vit": Vit,
    "swin": Swin,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "tcn": Tcn,
    "encoder": Encoder,
    "embedding_bag": Bag,
    "table": table,
}
HUGGING_FACE = ("hf_bert", "hf_distilbert", "hf_roberta", "hf_gpt2", "hf_llama", "hf_vit")


def made(name: str) -> vd.Task:
    """A task of two samples on an architecture, in float64."""
    torch.manual_seed(0)
    hf = name.startswith("hf_")
    net = hugging_face(name[3:]) if hf else (CONVOLUTIONAL | OTHERS)[name]()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in net.parameters():
            spread = value[0].numel() ** -0.5 if value.dim() > 1 else 0.3
            value.add_(torch.randn(value.shape, generator=generator) * spread)
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(0, 0.3, generator=generator)
                layer.running_var.uniform_(0.5, 1.5, generator=generator)
    net = net.double().eval()
    plan = Plan(rows=64)
    if name in CONVOLUTIONAL or name in ("vit", "swin", "hf_vit"):
        x, train = (torch.randn(n, 3, SIZE, SIZE, generator=generator).double() for n in (2, 3))
        return vd.Task(net, x, train=train, plan=plan)
    if name in ("lstm", "gru", "tcn"):
        x, train = (torch.randn(n, 2, 9, generator=generator).double() for n in (2, 3))
        return vd.Task(net, x, train=train, plan=plan)
    if name == "table":
        x, train = (torch.randn(n, 6, generator=generator).double() for n in (2, 3))
        return vd.Task(net, x, train=train, plan=plan)
    ids = torch.randint(3, 20, (2, 6), generator=generator)
    side = {"attention_mask": torch.ones(2, 6, dtype=torch.int64)} if hf else ()
    return vd.Task(net, ids, side=side, plan=plan)
