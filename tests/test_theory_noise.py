"""Assumption 2: constants recovered from mini-batches whose noise is known."""

import geoopt
import numpy as np
import pytest
import torch

from riemcd.bases import LeftGivens
from riemcd.theory import Noise, Observation, noise_constants, observe_noise


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, B = normal(0, 4, 4), normal(1, 4, 4)


def place(seed):
    W = geoopt.ManifoldParameter(torch.linalg.qr(normal(seed, 4, 4))[0], manifold=geoopt.EuclideanStiefel())
    return torch.nn.Parameter(normal(seed + 1, 4, 4)), W


def exact(X, W):
    return 0.5 * X.square().sum() - (A * W).sum() + (B * X * W).sum()


def additive(seed, sigma, batches=200):
    """Gradients plus noise of variance sigma² in every entry: C is sigma² times the number of coordinates."""
    X, W = place(seed)
    noise = sigma * normal(seed + 2, batches, 2, 4, 4)

    def loss(n):
        return exact(X, W) + (n[0] * X).sum() + (n[1] * W).sum()

    return observe_noise([X, W], loss, noise, exact=lambda: exact(X, W))


def test_additive_noise_at_one_point():
    """16 free coordinates, 6 rotations: C_X = 16 sigma², C_W = 6 sigma², mu = M = 1."""
    found = noise_constants(additive(10, 0.5))
    assert found.mu_X.low <= 1.0 <= found.mu_X.high
    assert found.mu_W.low <= 1.0 <= found.mu_W.high
    assert found.C_X.value == pytest.approx(4.0, rel=0.15)
    assert found.C_W.value == pytest.approx(1.5, rel=0.2)
    assert found.M_X.value == pytest.approx(found.mu_X.value**2)
    worst = found.pessimistic()
    assert isinstance(worst, Noise)
    assert worst.mu_W <= found.mu_W.value
    assert found.C_W.value <= worst.C_W
    assert (found.points, found.batches, found.confidence) == (1, 200, 0.95)


def test_the_line_covers_all_points():
    seen = [additive(seed, 0.3) for seed in range(10, 60, 10)]
    found = noise_constants(seen)
    for o in seen:
        for kind, C, M in (("X", found.C_X, found.M_X), ("W", found.C_W, found.M_W)):
            assert o.norms[kind].mean() <= C.value + M.value * o.square[kind] + 1e-9


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """95% intervals from 40 batches; the bootstrap is known to be a little narrow."""
    repeats, covered = 40, dict.fromkeys(("mu_X", "mu_W", "C_X", "C_W"), 0)
    truth = {"mu_X": 1.0, "mu_W": 1.0, "C_X": 4.0, "C_W": 1.5}
    for repeat in range(repeats):
        found = noise_constants(additive(1000 + 10 * repeat, 0.5, batches=40), resamples=200, seed=repeat)
        for name, value in truth.items():
            interval = getattr(found, name)
            covered[name] += interval.low <= value <= interval.high
    for name, count in covered.items():
        assert count >= 0.85 * repeats, name


def test_multiplicative_noise_needs_no_C():
    """Gradients times 1 ± 1/2: the noise vanishes with the gradient, and M = 1.25."""
    seen = []
    for seed in range(5):
        X, W = place(seed)
        seen.append(observe_noise([X, W], lambda n, X=X, W=W: (1 + n) * exact(X, W), [0.5, -0.5] * 20))
    found = noise_constants(seen)
    for C, M in ((found.C_X, found.M_X), (found.C_W, found.M_W)):
        assert C.value == pytest.approx(0.0, abs=1e-9)
        assert M.value == pytest.approx(1.25)


def test_scaled_gradients_have_a_scaled_mu():
    X, W = place(3)
    found = noise_constants(
        observe_noise([X, W], lambda n: 0.25 * exact(X, W), range(4), exact=lambda: exact(X, W))
    )
    assert found.mu_X.value == pytest.approx(0.25)
    assert found.M_W.value == pytest.approx(0.0625)


def test_slopes_measure_the_riemannian_gradient():
    """On tall matrices the rotations of rows are a Parseval frame of the canonical metric."""
    manifold = geoopt.CanonicalStiefel()
    W = geoopt.ManifoldParameter(torch.linalg.qr(normal(5, 6, 3))[0], manifold=manifold)
    target = normal(6, 6, 3)
    seen = observe_noise(W, lambda n: (1 + n) * (target * W).sum(), [0.1, -0.1], basis=LeftGivens())
    gradient = manifold.egrad2rgrad(W.detach(), target)
    assert seen.square["W"] == pytest.approx(float(manifold.inner(W.detach(), gradient, gradient)))
    assert "X" not in seen.square
    assert noise_constants(seen).mu_X is None


def test_nothing_is_changed():
    X, W = place(1)
    before = X.detach().clone(), W.detach().clone()
    observe_noise([X, W], lambda n: exact(X, W) + n, [0.0, 1.0])
    assert X.grad is None
    assert W.grad is None
    assert torch.equal(X, before[0])
    assert torch.equal(W, before[1])


def test_refusals():
    X, W = place(1)
    with pytest.raises(ValueError, match="at least 2"):
        observe_noise([X, W], lambda n: exact(X, W), [0.0])
    with pytest.raises(ValueError, match="at least one"):
        noise_constants([])
    seen = Observation({"W": 1.0}, {"W": np.ones(3)}, {"W": np.ones(3)})
    with pytest.raises(ValueError, match="confidence"):
        noise_constants(seen, confidence=1.5)
