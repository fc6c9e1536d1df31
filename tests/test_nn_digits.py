"""An orthogonal network learns the digits that ship with scikit-learn, without any weight gradient."""

import time

import geoopt
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from riemcd import SRCD, selections
from riemcd.nn import OrthogonalLinear

RATE, BATCH = 0.1, 128


class Rectifier(nn.Module):
    """A ReLU that keeps the mean square of its input, since an orthogonal layer cannot make up for it."""

    def forward(self, x):
        return 2**0.5 * torch.relu(x)


def digits():
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    x = (x - x.mean(0)) / (x.std(0) + 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (x[order[:1437]], y[order[:1437]]), (x[order[1437:]], y[order[1437:]])


def network(width, seed):
    torch.manual_seed(seed)
    sizes = [(64, width), *[(width, width)] * 3]
    layers = [module for size in sizes for module in (OrthogonalLinear(*size), Rectifier())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def groups(net, factor):
    """Orthogonal weights get a rate of their own."""
    points = [p for p in net.parameters() if isinstance(p, geoopt.ManifoldParameter)]
    others = [p for p in net.parameters() if not isinstance(p, geoopt.ManifoldParameter)]
    return [{"params": points, "lr": factor * RATE}, {"params": others, "lr": RATE}]


def partitions(net):
    # One pair in (d - 1)/15 is turned: a rate that much larger makes up for it in the mean.
    return SRCD(
        groups(net, (net[-1].in_features - 1) / 15),
        selection=selections.Partition(16),
        skip_weight_grad=True,
    )


def matchings(net):
    # One pair in d - 1 is turned, and a rate d times larger would turn it too far.
    return SRCD(groups(net, net[-1].in_features / 5), skip_weight_grad=True)


def riemannian(net):
    return geoopt.optim.RiemannianSGD(groups(net, 1.0), lr=RATE)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=RATE)


def frozen(net):
    return torch.optim.SGD(groups(net, 0.0)[1:], lr=RATE)


def iteration(net, opt, x, y):
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()


def accuracy(make, width, epochs, seed):
    (x, y), (x_test, y_test) = digits()
    net = network(width, seed)
    opt = make(net)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            iteration(net, opt, x[batch], y[batch])
    for layer in net:
        if isinstance(layer, OrthogonalLinear) and make not in (sgd, frozen):
            weight = layer.weight.detach()
            assert (weight.mT @ weight - torch.eye(weight.shape[1])).abs().max() < 1e-4
    with torch.no_grad():
        return float((net(x_test).argmax(1) == y_test).float().mean())


def mean_accuracy(make, width, epochs, seeds):
    return sum(accuracy(make, width, epochs, seed) for seed in seeds) / len(seeds)


def test_a_narrow_network_becomes_as_good_as_with_riemannian_descent():
    ours, theirs, control = (
        mean_accuracy(make, 64, 20, range(2)) for make in (partitions, riemannian, frozen)
    )
    assert ours > theirs - 0.02
    assert ours > control + 0.02


@pytest.mark.long
def test_a_wide_network_becomes_as_good_as_with_riemannian_descent_and_faster_than_with_sgd():
    ours, theirs = (mean_accuracy(make, 1024, 20, range(1)) for make in (matchings, riemannian))
    print(f"accuracy {ours:.4f} against {theirs:.4f}")
    assert ours > theirs - 0.02  # the standard error of either is 0.01

    (x, y), _ = digits()
    times = {matchings: [], sgd: []}
    runs = {}
    for make in times:
        net = network(1024, 0)
        runs[make] = (net, make(net))
    for _ in range(30):
        for make, (net, opt) in runs.items():
            start = time.perf_counter()
            iteration(net, opt, x[:BATCH], y[:BATCH])
            times[make].append(time.perf_counter() - start)
    medians = {make.__name__: sorted(found)[15] for make, found in times.items()}
    print(f"an iteration takes {medians['matchings'] / medians['sgd']:.3f} of one with SGD")
    assert medians["matchings"] < medians["sgd"]
