"""Torch's own modules with weights on manifolds: what is shown to the module is what it computes with."""

import copy
import math

import geoopt
import pytest
import torch
from problems_for_tests import violation
from torch import nn

from riemcd import SRCD, constrain_, unconstrain_


def rnn_by_hand(x, w_ih, w_hh, b_ih, b_hh):
    h = x.new_zeros(x.shape[1], w_hh.shape[1])
    out = []
    for row in x:
        h = torch.tanh(row @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
        out.append(h)
    return torch.stack(out)


def gru_by_hand(x, w_ih, w_hh, b_ih, b_hh):
    h = x.new_zeros(x.shape[1], w_hh.shape[1])
    out = []
    for row in x:
        ir, iz, im = (row @ w_ih.T + b_ih).chunk(3, 1)
        hr, hz, hm = (h @ w_hh.T + b_hh).chunk(3, 1)
        z = torch.sigmoid(iz + hz)
        h = (1 - z) * torch.tanh(im + torch.sigmoid(ir + hr) * hm) + z * h
        out.append(h)
    return torch.stack(out)


def lstm_by_hand(x, w_ih, w_hh, b_ih, b_hh):
    h = c = x.new_zeros(x.shape[1], w_hh.shape[1])
    out = []
    for row in x:
        i, f, g, o = (row @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out)


RECURRENT = {
    "RNN": (nn.RNN, 1, rnn_by_hand),
    "GRU": (nn.GRU, 3, gru_by_hand),
    "LSTM": (nn.LSTM, 4, lstm_by_hand),
}


def weights(module):
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    return [getattr(module, name).as_subclass(torch.Tensor) for name in names]


def points_of(module):
    return [p for p in module.parameters() if isinstance(p, geoopt.ManifoldParameter)]


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_blocks_are_what_the_module_computes_with(name):
    torch.manual_seed(0)
    kind, blocks, by_hand = RECURRENT[name]
    module = constrain_(kind(3, 5).double(), "weight_hh_l0", blocks=blocks)
    (W,) = points_of(module)
    assert W.shape == ((5, 5) if blocks == 1 else (blocks, 5, 5))
    opt = SRCD(module.parameters(), lr=0.05)
    x, target = torch.randn(2, 7, 4, 3 + 5, dtype=torch.float64).split([3, 5], -1)
    x, target = x[0], target[1]
    start, first = W.detach().clone(), None
    for _ in range(12):  # also after the weight has moved, and the copy it showed before is stale
        out = module(x)[0]
        expected = by_hand(x, *weights(module))
        assert (out - expected).abs().max() < 1e-12
        loss = (out - target).square().mean()
        (slope,) = torch.autograd.grad((expected - target).square().mean(), [W])
        opt.zero_grad()
        loss.backward()
        assert (W.grad - slope).abs().max() < 1e-12 and slope.abs().max() > 0
        first = first if first is not None else loss.item()
        opt.step()
    assert loss.item() < first and not torch.equal(W, start)
    assert violation(W) < 1e-12


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_recurrent_modules_can_be_converted_saved_copied_and_freed(name):
    torch.manual_seed(0)
    kind, blocks, by_hand = RECURRENT[name]
    module = constrain_(kind(3, 5), "weight_hh_l0", blocks=blocks)
    x = torch.randn(4, 2, 3)
    out = module(x)[0].detach()
    other = constrain_(kind(3, 5), "weight_hh_l0", blocks=blocks)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x)[0], out)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x)[0], out) and points_of(twin)[0] is not points_of(module)[0]
    module.double()
    (W,) = points_of(module)
    assert W.dtype == torch.float64
    assert (module(x.double())[0] - by_hand(x.double(), *weights(module))).abs().max() < 1e-12
    module.float()
    unconstrain_(module, "weight_hh_l0")
    assert not points_of(module) and type(module.weight_hh_l0) is nn.Parameter
    assert (module(x)[0] - out).abs().max() < 1e-6
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    assert (module(x)[0] - out).abs().max() > 1e-3


def test_layers_and_directions_are_constrained_one_by_one():
    torch.manual_seed(0)
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    for name in [n for n, _ in module.named_parameters() if n.startswith("weight_hh")]:
        constrain_(module, name, blocks=4, init="haar")
    assert len(points_of(module)) == 4
    opt = SRCD(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in points_of(module)]
    module(torch.randn(5, 2, 3))[0].square().sum().backward()
    opt.step()
    for old, new in zip(before, points_of(module), strict=True):
        assert not torch.equal(old, new) and violation(new) < 1e-5


@pytest.mark.parametrize(("kind", "blocks"), [(nn.RNNCell, 1), (nn.GRUCell, 3), (nn.LSTMCell, 4)])
def test_cells(kind, blocks):
    torch.manual_seed(0)
    cell = constrain_(kind(3, 4), "weight_hh", blocks=blocks)
    opt = SRCD(cell.parameters(), lr=0.1)
    (W,) = points_of(cell)
    before = W.detach().clone()
    state = None
    for row in torch.randn(5, 2, 3):
        state = cell(row, state)
    (state[0] if isinstance(state, tuple) else state).square().sum().backward()
    assert W.grad.abs().max() > 0
    opt.step()
    assert not torch.equal(W, before)
    assert all(violation(block) < 1e-5 for block in cell.weight_hh.detach().chunk(blocks))


def attention_by_hand(x, attention):
    q, k, v = (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, -1)
    heads = attention.num_heads
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    seen = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
    return attention.out_proj(seen.transpose(1, 2).flatten(-2))


def test_projections_of_attention():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    constrain_(attention, "in_proj_weight", blocks=3)
    constrain_(attention.out_proj, "weight")
    stack, out = points_of(attention)[::-1] if points_of(attention)[0].dim() == 2 else points_of(attention)
    assert stack.shape == (3, 8, 8) and out.shape == (8, 8)
    opt = SRCD(attention.parameters(), lr=0.05)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    for _ in range(3):
        expected = attention_by_hand(x, attention)
        found = attention(x, x, x)[0]
        assert (found - expected).abs().max() < 1e-12
        opt.zero_grad()
        (found * torch.arange(8.0)).square().sum().backward()
        opt.step()
    assert violation(stack) < 1e-12 and violation(out) < 1e-12
    attention.eval()  # where torch has a path of its own, without gradients
    with torch.no_grad():
        assert (attention(x, x, x)[0] - attention_by_hand(x, attention)).abs().max() < 1e-12


def test_an_encoder_layer_in_eval_mode_sees_the_constrained_projections():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    constrain_(layer.self_attn, "in_proj_weight", blocks=3)
    x = torch.randn(2, 5, 8)
    training = layer(x).detach()
    layer.eval()
    with torch.no_grad():
        assert (layer(x) - training).abs().max() < 1e-5


@pytest.mark.parametrize("channels", [(2, 30), (8, 3)])
def test_convolution_kernels_are_flattened(channels):
    torch.manual_seed(0)
    conv = constrain_(nn.Conv2d(*channels, 3), "weight")
    (W,) = points_of(conv)
    flat = conv.weight.detach().flatten(1)
    assert violation(flat if flat.shape[0] >= flat.shape[1] else flat.T) < 1e-5
    opt = SRCD(conv.parameters(), lr=0.01)
    x = torch.randn(2, channels[0], 6, 6)
    patches = nn.functional.unfold(x, 3)
    expected = (flat @ patches + conv.bias.detach()[:, None]).view(2, channels[1], 4, 4)
    assert (conv(x) - expected).abs().max() < 1e-5
    conv(x).pow(4).sum().backward()
    before = W.detach().clone()
    opt.step()
    assert not torch.equal(W, before) and violation(W) < 1e-5


class Tied(nn.Module):
    """An embedding whose table is the weight of the last layer as well."""

    def __init__(self, words, size):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)], ids=["tall", "wide"])
def test_tied_weights_stay_tied(shape):
    torch.manual_seed(0)
    model = constrain_(Tied(*shape), "embed.weight")
    (W,) = points_of(model)
    assert len(list(model.parameters())) == 1
    opt = SRCD(model.parameters(), lr=0.01)
    tokens = torch.randint(shape[0], (16,))
    for _ in range(3):
        opt.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens.roll(1)).backward()
        opt.step()
        assert torch.equal(model.head.weight, model.embed.weight)
    assert violation(W) < 1e-5
    unconstrain_(model, "embed.weight")
    assert model.head.weight is model.embed.weight and type(model.head.weight) is nn.Parameter
    assert len(list(model.parameters())) == 1


def test_both_gradients_of_a_tied_weight_arrive():
    model = constrain_(Tied(9, 4), "head.weight")
    tokens = torch.arange(6)
    model(tokens).square().sum().backward()
    W = model.embed.weight.detach().as_subclass(torch.Tensor).clone().requires_grad_()
    (nn.functional.embedding(tokens, W) @ W.T).square().sum().backward()
    assert (model.embed.weight.grad - W.grad).abs().max() < 1e-5


def test_a_path_that_leads_nowhere():
    with pytest.raises(ValueError, match="Tied has no submodule 'body'"):
        constrain_(Tied(9, 4), "body.weight")
    with pytest.raises(ValueError, match="Embedding has no parameter 'wieght'; it has 'weight'"):
        constrain_(Tied(9, 4), "embed.wieght")
