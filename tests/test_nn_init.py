"""Where orthogonal weights start."""

import math

import pytest
import torch
from scipy import stats

from riemcd.nn import init

SQUARE = [init.haar_, init.cayley_, init.henaff_, init.identity_]


@pytest.mark.parametrize("fill", SQUARE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(5, 5), (6, 6), (1, 1), (3, 4, 4)])
def test_square_matrices_are_orthogonal_and_filled_in_place(fill, shape):
    tensor = torch.full(shape, 9.0, dtype=torch.float64)
    assert fill(tensor) is tensor
    torch.testing.assert_close(tensor.mT @ tensor, torch.eye(shape[-1], dtype=torch.float64).expand(shape))


@pytest.mark.parametrize("fill", [init.haar_, init.identity_], ids=lambda f: f.__name__)
def test_tall_and_wide_matrices(fill):
    tall, wide = (fill(torch.empty(shape, dtype=torch.float64)) for shape in ((5, 3), (3, 5)))
    torch.testing.assert_close(tall.mT @ tall, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(wide @ wide.mT, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("fill", [init.cayley_, init.henaff_], ids=lambda f: f.__name__)
def test_block_rotations_refuse_other_shapes(fill):
    with pytest.raises(ValueError, match="square"):
        fill(torch.empty(5, 3))


def angles_of(fill, blocks=2000):
    tensor = fill(torch.empty(2 * blocks, 2 * blocks), torch.Generator().manual_seed(0))
    at = 2 * torch.arange(blocks)
    return torch.atan2(tensor[at, at + 1], tensor[at, at]).double().numpy()


def test_henaff_angles_are_uniform():
    assert stats.kstest(angles_of(init.henaff_), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 0.01


def test_cayley_angles_come_from_uniform_numbers():
    """The Cayley transform (I - A)⁻¹(I + A) of [[0, s], [-s, 0]] has s = tan(angle / 2)."""
    s = torch.tan(torch.tensor(angles_of(init.cayley_)) / 2).numpy()
    assert stats.kstest(s, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 0.01
    a = torch.tensor([[0.0, s[0]], [-s[0], 0.0]])
    eye = torch.eye(2)
    expected = torch.linalg.solve(eye - a, eye + a)
    found = init.cayley_(torch.empty(4000, 4000), torch.Generator().manual_seed(0))[:2, :2]
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-5)


def test_haar_is_invariant():
    """Entries of a uniformly random rotation of R³ are uniform on [-1, 1], by Archimedes."""
    tensor = init.haar_(torch.empty(4000, 3, 3), torch.Generator().manual_seed(0))
    for i in range(3):
        assert stats.kstest(tensor[:, i, 2 - i].numpy(), stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert abs(float(torch.linalg.det(tensor).mean())) < 0.1
