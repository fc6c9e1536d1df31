"""The laws of a basis. Each compares with an oracle that does not use the basis's own formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from ..covector import Wedge
from ..index import linear_to_pair
from .basis_case import BasisCase, wide
from .registry import Laws

__all__ = ["BASIS_LAWS"]

BASIS_LAWS: Laws[BasisCase] = Laws()


def _close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    worst = float((a - b).abs().max()) if b.numel() else 0.0
    assert worst <= tolerance * scale, f"{what}: off by {worst:.3g}, allowed {tolerance * scale:.3g}"


@BASIS_LAWS.add()
def counts_agree(case: BasisCase) -> None:
    """``count``, ``index`` and ``partials`` speak of the same number of coordinates."""
    slopes = case.basis.partials(case.covector)
    assert slopes.shape == (*case.batch, case.count)
    dims, shape = case.basis.point_dims, tuple(case.example.shape)
    assert len(shape) == dims, f"point_dims is {dims}, but one point of the example has the shape {shape}"
    assert case.basis.index(case.shape).count == case.count
    assert bool(case.basis.index(case.shape).nodes) == case.basis.pairs


@BASIS_LAWS.add()
def partials_are_slopes(case: BasisCase) -> None:
    """A partial is the slope of the loss along its move, by finite differences."""
    slopes, h = case.basis.partials(case.covector), case.reach
    weights = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
    one = torch.ones(*case.batch, 1, dtype=case.dtype)
    for i in range(case.count):
        at = torch.tensor([i])
        measured = sum(w / h * case.loss(case.moved(at, n * h * one)) for n, w in weights)
        _close(slopes[..., i], torch.as_tensor(measured), case.slack, f"slope of coordinate {i}")


@BASIS_LAWS.add()
def some_partials_are_those_of_all(case: BasisCase) -> None:
    """``partials(c, s)`` equals ``partials(c)[s]``, for shared and for separate coordinates."""
    slopes, shared = case.basis.partials(case.covector), case.some(4)
    _close(case.basis.partials(case.covector, shared), slopes[..., shared], case.tolerance, "shared set")
    own = _own_coordinates(case, 3)
    _close(case.basis.partials(case.covector, own), slopes.gather(-1, own), case.tolerance, "own sets")


def _own_coordinates(case: BasisCase, k: int) -> Tensor:
    """Return different coordinates for every element of the batch, ``(*batch, k)``."""
    sets = [case.some(k, seed) for seed in range(int(torch.Size(case.batch).numel()))]
    return torch.stack(sets).view(*case.batch, -1)


@BASIS_LAWS.add(lambda case: isinstance(case.covector, Wedge))
def factored_covectors_agree(case: BasisCase) -> None:
    """Factors with the same wedge give the same slopes, however many rows they have."""
    covector = case.covector
    assert isinstance(covector, Wedge)
    generator = torch.Generator().manual_seed(case.seed)
    rows = covector.u.shape[-2]
    mix = torch.linalg.qr(torch.randn(rows + 3, rows, generator=generator, dtype=torch.float64)).Q
    mixed = Wedge(mix.to(case.dtype) @ covector.u, mix.to(case.dtype) @ covector.v)
    _close(
        case.basis.partials(mixed), case.basis.partials(covector), case.tolerance, "slopes from other factors"
    )


@BASIS_LAWS.add()
def moves_stay_on_the_manifold(case: BasisCase) -> None:
    """Single coordinates and sets, moved by ordinary amounts, leave a point of the manifold."""
    manifold = case.example.manifold
    for k in (1, 2, 5):
        coords = case.some(k)
        point = case.moved(coords, case.amounts(coords.numel(), 0.5))
        wide = point.to(torch.complex128 if point.is_complex() else torch.float64)  # that of the manifold
        ok, reason = manifold.check_point_on_manifold(
            wide, explain=True, atol=10 * case.tolerance, rtol=10 * case.tolerance
        )
        assert ok, f"moved by {coords.numel()} coordinates: {reason}"


@BASIS_LAWS.add()
def sets_leave_along_the_sum(case: BasisCase) -> None:
    """The velocity of a set is the sum of the velocities of its coordinates."""
    coords = case.some(4)
    amounts = case.amounts(coords.numel(), 1.0)
    spread = amounts.movedim(-1, 0)[(...,) + (None,) * len(case.example.shape)]
    expected = (spread * case.directions[coords]).sum(0)
    _close(case.along(coords, amounts), expected, case.slack, "velocity of a set")


@BASIS_LAWS.add(lambda case: case.basis.geodesic)
def moves_are_geodesics(case: BasisCase) -> None:
    """The distance travelled is ``|t|`` times the length of the direction."""
    double = BasisCase(case.example, case.batch, torch.float64, case.seed)
    for i in case.some(6).tolist():
        eta = double.directions[i]
        length = double.inner(eta, eta).clamp_min(0).sqrt()
        amounts = case.amounts(1, 0.4, seed=i)
        travelled = case.distance(case.point, case.moved(torch.tensor([i]), amounts))
        # A distance is a square root: rounding shows as its root where the distance itself is small.
        expected = (amounts[..., 0].abs() * length.to(case.dtype)).to(travelled.dtype)
        _close(travelled, expected, 5e-3 if case.single else 2e-7, f"distance along coordinate {i}")


@BASIS_LAWS.add(lambda case: case.basis.reversible)
def there_and_back(case: BasisCase) -> None:
    """``t`` and then ``-t`` along the same coordinate is the identity."""
    for i in case.some(6).tolist():
        at, amounts = torch.tensor([i]), case.amounts(1, 0.4, seed=i)
        point = case.moved(at, amounts)
        case.basis.move_(point, at, -amounts)
        _close(point, case.point, case.tolerance, f"coordinate {i} there and back")


@BASIS_LAWS.add()
def nothing_changes_no_bit(case: BasisCase) -> None:
    """``t = 0`` leaves every bit, for one coordinate and for a set."""
    for k in (1, 5):
        coords = case.some(k)
        point = case.moved(coords, torch.zeros(*case.batch, coords.numel()))
        assert torch.equal(point, case.point), f"{coords.numel()} zero amounts changed the point"


@BASIS_LAWS.add()
def sets_follow_the_exponential(case: BasisCase) -> None:
    """A set moved at once is the exponential of the sum, from a dense oracle."""
    double = BasisCase(case.example, case.batch, torch.float64, case.seed)
    for k in (1, 2, 3, 6):
        coords = case.some(k, seed=k)
        amounts = case.amounts(coords.numel(), 0.3, seed=k).double()
        if case.example.exponential is not None:
            expected = case.example.exponential(double.point, coords, amounts)
        else:
            spread = amounts.movedim(-1, 0)[(...,) + (None,) * len(case.example.shape)]
            velocity = (spread * double.directions[coords]).sum(0)
            expected = case.example.manifold.expmap(double.point, velocity)
        moved = case.moved(coords, amounts)
        _close(moved.to(expected.dtype), expected, 2e-4 if case.single else 1e-9, f"a set of {k}")


@BASIS_LAWS.add()
def order_is_irrelevant(case: BasisCase) -> None:
    """A set has no order."""
    coords = case.some(5)
    amounts, order = case.amounts(coords.numel()), torch.arange(coords.numel()).flip(0)
    turned = case.moved(coords[order], amounts[..., order])
    _close(turned, case.moved(coords, amounts), case.tolerance, "the same set in another order")


@BASIS_LAWS.add()
def directions_span(case: BasisCase) -> None:
    """Directions reach the whole tangent space, or are at least independent where they do not."""
    expected = _ranks(case, _tangents(case)) if case.basis.spans else case.count
    assert (_ranks(case, case.directions) == expected).all()


def _ranks(case: BasisCase, vectors: Tensor) -> Tensor:
    """Return the ranks of some vectors at each point, ``(*batch,)``; vectors are ``(m, *shape)``."""
    real = torch.view_as_real(vectors) if vectors.is_complex() else vectors
    rows = real.double().movedim(0, len(case.batch)).reshape(*case.batch, vectors.shape[0], -1)
    ranks: Tensor = torch.linalg.matrix_rank(rows, atol=10 * case.slack)
    return ranks


def _tangents(case: BasisCase) -> Tensor:
    """Return more tangent vectors than a point has numbers, by the manifold's own projection."""
    generator = torch.Generator().manual_seed(5)
    size = 2 * case.point[(0,) * len(case.batch)].numel() + 4
    vectors = torch.randn(size, *case.shape, generator=generator, dtype=torch.float64)
    if case.point.is_complex():
        vectors = torch.complex(vectors, torch.randn(vectors.shape, generator=generator, dtype=torch.float64))
    return torch.stack([case.example.manifold.proju(wide(case.point), v) for v in vectors])


@BASIS_LAWS.add(lambda case: case.basis.frame == "orthonormal")
def directions_are_orthonormal(case: BasisCase) -> None:
    """The Gram matrix of the directions is the identity."""
    eta = case.directions
    for i in range(case.count):
        for j in range(i, case.count):
            expected = torch.full(case.batch, float(i == j), dtype=torch.float64)
            _close(case.inner(eta[i], eta[j]).double(), expected, case.slack, f"inner product of {i} and {j}")


@BASIS_LAWS.add(lambda case: case.basis.frame != "spanning" and case.basis.spans)
def frame_identities(case: BasisCase) -> None:
    r"""``sum_i p_i eta_i = grad`` and ``sum_i p_i^2 = |grad|^2``: what carries the theorem."""
    slopes = case.basis.partials(case.covector)
    gradient = case.example.manifold.egrad2rgrad(wide(case.point), wide(case.grad))
    spread = slopes.movedim(-1, 0)[(...,) + (None,) * len(case.example.shape)]
    _close((spread * case.directions).sum(0), gradient, case.slack, "sum of partials times directions")
    _close(slopes.square().sum(-1), case.inner(gradient, gradient), case.slack, "sum of squared partials")


@BASIS_LAWS.add(lambda case: len(case.batch) > 0)
def batch_is_a_loop(case: BasisCase) -> None:
    """A batch does what a loop over its elements does, for shared and for separate coordinates."""
    for coords in (case.some(3), _own_coordinates(case, 3)):
        amounts = case.amounts(coords.shape[-1])
        together = case.moved(coords, amounts)
        for element in _elements(case.batch):
            own = coords if coords.dim() == 1 else coords[element]
            point = case.point[element].clone()
            covector = case.basis.covector(point, case.grad[element])
            slopes = case.basis.partials(case.covector, coords)[element]
            _close(case.basis.partials(covector, own), slopes, case.tolerance, f"slopes of {element}")
            case.basis.move_(point, own, amounts[element])
            _close(together[element], point, case.tolerance, f"move of {element}")


def _elements(batch: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [
        tuple(index.tolist())
        for index in torch.cartesian_prod(*map(torch.arange, batch)).view(-1, len(batch))
    ]


@BASIS_LAWS.add()
def moves_are_in_place(case: BasisCase) -> None:
    """The same storage and strides, whatever they are, and the same result."""
    coords = case.some(3)
    amounts = case.amounts(coords.numel())
    expected = case.moved(coords, amounts)
    for point in _layouts(case.point):
        before = (point.data_ptr(), point.stride())
        case.basis.move_(point, coords, amounts)
        assert (point.data_ptr(), point.stride()) == before
        _close(point, expected, case.tolerance, f"strides {point.stride()}")


def _layouts(point: Tensor) -> list[Tensor]:
    reverse = tuple(range(point.dim()))[::-1]
    fortran = point.permute(reverse).contiguous().permute(reverse)
    gapped = torch.zeros(*point.shape[:-1], 2 * point.shape[-1], dtype=point.dtype)[..., ::2]
    gapped.copy_(point)
    return [point.clone(), fortran.clone(memory_format=torch.preserve_format), gapped]


@BASIS_LAWS.add(lambda case: case.basis.turns is not None)
def angles_are_angles(case: BasisCase) -> None:
    """An amount of ``arclength(1)`` turns by one radian: its slope is the bare wedge of the factors."""
    covector = case.covector
    assert isinstance(covector, Wedge)
    j, l = linear_to_pair(torch.arange(case.count), covector.u.shape[-1])
    u, v = covector.u.double(), covector.v.double()
    wedge = (u[..., j] * v[..., l] - u[..., l] * v[..., j]).sum(-2)
    turned = case.basis.partials(covector).double() * case.basis.arclength(1.0)
    _close(turned, wedge, case.tolerance, "slope per radian")


@BASIS_LAWS.add(lambda case: case.basis.consistent)
def directions_keep_their_meaning(case: BasisCase) -> None:
    """Directions are smooth functions of the point: nearby ones, and every second look, are alike."""
    coords = case.some(3)
    near = case.moved(coords, case.amounts(coords.numel(), 1e-5))
    one, slack = torch.ones(*case.batch, 1, dtype=case.dtype), 1e-3 + case.slack
    for i in range(case.count):
        _close(case.along(torch.tensor([i]), one, start=near), case.directions[i], slack, f"direction {i}")


@BASIS_LAWS.add(lambda case: case.basis.fixed_norm)
def norms_are_fixed(case: BasisCase) -> None:
    """No move changes the Frobenius norm of a point, so that weight decay has nothing to do."""
    coords = case.some(5)
    moved = case.moved(coords, case.amounts(coords.numel()))
    _close(moved.norm(), case.point.norm(), case.tolerance, "norm")


@BASIS_LAWS.add()
def state_changes_nothing(case: BasisCase) -> None:
    """What a basis keeps between steps speeds it up and changes no result, and is plain tensors."""
    kept: dict[str, object] = {}
    with_state, without = case.point.clone(), case.point.clone()
    for step in range(3):
        coords, amounts = case.some(3, step), case.amounts(min(3, case.count), seed=step)
        case.basis.move_(without, coords, amounts)
        covector = case.basis.covector(with_state, case.grad)
        slopes = case.basis.partials(covector, coords, kept)
        _close(slopes, case.basis.partials(covector, coords), case.tolerance, f"slopes at step {step}")
        case.basis.move_(with_state, coords, amounts, kept)
        _close(with_state, without, case.tolerance, f"point after step {step}")
    assert all(isinstance(value, Tensor | int | float) for value in kept.values())
