"""Bad input gets one clear sentence and changes nothing."""

import copy
import warnings

import geoopt
import pytest
import torch
from problems_for_tests import orthogonal, parameter, quartic, train

import riemcd
from riemcd import SRCD, bases, selections, stepsizes
from riemcd.descent import Reading, raise_if_not_finite
from riemcd.errors import ManifoldLostWarning, WeightDecayWarning
from riemcd.index import Index

NAN = float("nan")


def one_sentence(error):
    text = str(error.value)
    assert text and "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lr": -1.0}, ValueError, "Invalid learning rate: -1.0"),
        ({"lr": NAN}, ValueError, "Invalid learning rate: nan"),
        ({"lr": float("inf")}, ValueError, "Invalid learning rate: inf"),
        ({"lr": torch.tensor([0.1, 0.2])}, ValueError, "Tensor lr must be 1-element"),
        ({"lr": "fast"}, TypeError, "lr must be a number, got 'fast'"),
        ({"lr": None}, TypeError, "lr must be a number, got None"),
        ({"momentum": -0.1}, ValueError, "Invalid momentum value: -0.1"),
        ({"dampening": -0.1}, ValueError, "Invalid dampening value: -0.1"),
        ({"weight_decay": -1}, ValueError, "Invalid weight_decay value: -1"),
        ({"nesterov": True}, ValueError, "Nesterov momentum requires a momentum and zero dampening"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
        ({"stabilize": 0}, ValueError, "stabilize must be at least 1 step, got 0"),
        ({"stabilize": 1.5}, TypeError, "stabilize must be None or a number of steps, got 1.5"),
        ({"seed": "x"}, TypeError, "seed must be an integer, got 'x'"),
        ({"nonfinite": "no"}, ValueError, "nonfinite must be one of raise, skip, ignore, got 'no'"),
        ({"selection": "uniform"}, TypeError, "selection must be a riemcd.selections.Selection"),
        ({"selection": selections.Uniform}, TypeError, "write Uniform() to make an instance"),
        ({"basis": "givens"}, TypeError, "basis must be a riemcd.bases.Basis"),
        ({"basis": selections.All()}, TypeError, "basis must be a riemcd.bases.Basis"),
        ({"stepsize": 0.1}, TypeError, "stepsize must be a riemcd.stepsizes.StepSize"),
        ({"selection": selections.Uniform(100)}, ValueError, "takes 100 coordinates, but there are only 15"),
        ({"selection": selections.GaussSouthwell(16)}, ValueError, "parameter '0.0', shape (6, 6)"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_options(options, error, words):
    W = parameter(6, 6)
    with pytest.raises(error) as caught:
        SRCD([W], **options)
    assert words in one_sentence(caught)
    opt = SRCD([W])
    with pytest.raises(error) as caught:
        opt.add_param_group({"params": [parameter(6, 6, seed=1)], **options})
    one_sentence(caught)
    assert len(opt.param_groups) == 1 and len(opt.plans) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: selections.Uniform(0), "k must be at least 1, got 0"),
        (lambda: selections.Cyclic(-1), "k must be at least 1, got -1"),
        (lambda: selections.GaussSouthwell(0), "k must be at least 1, got 0"),
        (lambda: selections.GaussSouthwell(fraction=0.0), "fraction must lie in (0, 1], got 0.0"),
        (lambda: selections.GaussSouthwell(fraction=1.1), "fraction must lie in (0, 1], got 1.1"),
        (lambda: selections.GaussSouthwell(fraction=NAN), "fraction must lie in (0, 1], got nan"),
        (lambda: selections.GaussSouthwell(k=2, fraction=0.1), "GaussSouthwell"),
    ],
)
def test_rules(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert words in one_sentence(caught)


def test_rules_of_the_wrong_type():
    for make in (
        lambda: selections.Uniform(1.5),
        lambda: selections.Uniform("1"),
        lambda: selections.Cyclic(True),
    ):
        with pytest.raises(TypeError, match="must be an integer"):
            make()


def test_a_point_off_its_manifold():
    W = parameter(5, 5)
    with torch.no_grad():
        W.mul_(1.01)
    with pytest.raises(ValueError, match=r"off its manifold EuclideanStiefelExact by 0\.0\d+ .*\.proj_\(\)"):
        SRCD([W])
    with torch.no_grad():
        W.proj_()
    SRCD([W])


def test_a_point_with_nan():
    W = parameter(4, 4)
    with torch.no_grad():
        W[0, 0] = NAN
    with pytest.raises(ValueError, match=r"NaN or infinite entries \(parameter '0.0', shape \(4, 4\)\)"):
        SRCD([W])


def test_kinds_of_parameters():
    stiefel = {"manifold": geoopt.EuclideanStiefel()}
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        SRCD([{"params": [torch.eye(3, dtype=torch.int64)], **stiefel}])
    with pytest.raises(TypeError, match=r"moves real points only, got torch\.complex64"):
        SRCD([{"params": [torch.eye(3, dtype=torch.complex64)], **stiefel}])
    with pytest.raises(ValueError, match="dimensions"):
        SRCD([{"params": [torch.ones(3)], **stiefel}])
    with pytest.raises(ValueError, match="shape does not fit EuclideanStiefel"):
        SRCD([{"params": [torch.eye(3)[:2]], **stiefel}])
    with pytest.raises(TypeError, match="Tensor"):
        SRCD([3])


def test_dtensors_are_refused_with_the_remedy():
    class DTensor(torch.Tensor):
        placements = ()

    with pytest.raises(TypeError, match=r"cannot move a DTensor .*ignored_params"):
        SRCD([{"params": [torch.eye(3).as_subclass(DTensor).requires_grad_()], "manifold": geoopt.Stiefel()}])


def test_sparse_gradients_of_one_point():
    W = parameter(4, 4)
    opt = SRCD([W], lr=0.1)
    W.grad = torch.eye(4, dtype=torch.float64).to_sparse()
    with pytest.raises(ValueError, match="sparse gradient"):
        opt.step()
    assert torch.equal(W, orthogonal(4, 4)) and not opt.state.get(W)


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_nonfinite_slopes_change_nothing_under_raise(bad):
    W, V, plain = parameter(6, 6), parameter(6, 6, seed=1), torch.nn.Parameter(torch.ones(3))
    opt = SRCD([V, W, plain], lr=0.1, momentum=0.9)
    for param in (W, V, plain):
        param.grad = torch.ones_like(param)
    opt.step()
    before = copy.deepcopy([W.detach(), V.detach(), plain.detach(), opt.state_dict()])
    W.grad[2, 3] = bad
    with pytest.raises(ValueError, match=r"of 3 slopes are NaN or infinite .*nothing was changed"):
        for _ in range(10):  # every matching of six columns touches column 3
            opt.step()
    after = [W.detach(), V.detach(), plain.detach(), opt.state_dict()]
    for a, b in zip(before[:3], after[:3], strict=True):
        assert torch.equal(a, b)
    for key, state in before[3]["state"].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[3]["state"][key][name]))


def test_nonfinite_slopes_are_skipped_and_counted():
    W = parameter(6, 6)
    opt = SRCD([W], lr=0.1, nonfinite="skip", selection=selections.RandomMatching())
    W.grad = torch.randn(6, 6, dtype=torch.float64)
    W.grad[2, 3] = NAN
    before = W.detach().clone()
    opt.step()
    assert opt.last_step.skipped == 1
    still = [j for j in range(6) if torch.equal(W[:, j], before[:, j])]
    assert 3 in still and len(still) == 2
    assert torch.isfinite(W).all()


def test_nonfinite_slopes_may_be_ignored():
    W = parameter(6, 6)
    opt = SRCD([W], lr=0.1, nonfinite="ignore")
    W.grad = torch.full((6, 6), NAN, dtype=torch.float64)
    opt.step()
    assert W.isnan().any()


def test_large_finite_slopes_are_not_taken_for_infinite():
    def reading(*slopes):
        return Reading(Index(2), torch.arange(2), torch.tensor(slopes, dtype=torch.float32), {})

    large = reading(3e38, 3e38)
    assert torch.isinf(large.slopes.sum())
    raise_if_not_finite([("large", large), ("small", reading(1.0, 2.0))])
    with pytest.raises(ValueError, match=r"1 of 2 slopes are NaN or infinite \(bad\)"):
        raise_if_not_finite([("large", large), ("bad", reading(1.0, NAN))])


def test_a_manifold_without_a_basis():
    class Nowhere:
        name = "Nowhere"

    with pytest.raises(ValueError, match=r"no basis for manifold Nowhere.*@basis_for.register\(Nowhere\)"):
        bases.basis_for(Nowhere())


def test_pair_rules_need_pairs():
    vectors = geoopt.ManifoldParameter(torch.tensor([[1.0, 0.0, 0.0]]), manifold=geoopt.SphereExact())
    with pytest.raises(
        ValueError, match=r"RandomMatching\(\) chooses pairs.*parameter '0.0', shape \(1, 3\)"
    ):
        SRCD([vectors], selection=selections.RandomMatching(), basis=bases.SphereBasis())


def test_a_basis_that_would_leave_the_manifold():
    vector = geoopt.ManifoldParameter(torch.tensor([1.0, 0.0, 0.0]), manifold=geoopt.SphereExact())
    spd = geoopt.ManifoldParameter(torch.eye(3), manifold=geoopt.SymmetricPositiveDefinite())
    wrong = [
        (vector, bases.EuclideanBasis()),
        (spd, bases.RightGivens()),
        (parameter(3, 3), bases.SPDBasis()),
    ]
    for point, basis in wrong:
        with pytest.raises(ValueError, match="off its manifold"):
            SRCD([point], basis=basis)


def test_unknown_group_keys():
    W = parameter(4, 4)
    with pytest.raises(ValueError, match="unknown key 'lrr' in a parameter group"):
        SRCD([{"params": [W], "lrr": 0.1}])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"selection": selections.All()}, r"selection=RandomMatching\(\).*selection=All\(\)"),
        ({"basis": bases.LeftGivens()}, r"basis=None.*basis=LeftGivens"),
        ({"stepsize": riemcd.stepsizes.Constant()}, r"stepsize=None.*stepsize=Constant\(\)"),
    ],
    ids=["selection", "basis", "stepsize"],
)
def test_a_checkpoint_of_another_configuration(change, words):
    W = parameter(5, 5)
    opt = SRCD([W], lr=0.1, selection=selections.RandomMatching())
    train(opt, W, quartic((5, 5)), 2)
    V = parameter(5, 5, seed=2)
    other = SRCD([V], **{"selection": selections.RandomMatching(), **change})
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(opt.state_dict())
    assert not other.state and other.param_groups[0]["lr"] == 1e-3


def test_a_checkpoint_of_another_shape_or_no_checkpoint():
    W = parameter(5, 5)
    opt = SRCD([W], lr=0.1, momentum=0.9)
    train(opt, W, quartic((5, 5)), 2)
    other = SRCD([parameter(4, 4)], momentum=0.9)
    with pytest.raises(ValueError, match=r"shape \(5, 5\).*shape \(4, 4\)"):
        other.load_state_dict(opt.state_dict())
    for wrong in (None, {}, {"state": {}}, {"state": {}, "param_groups": []}):
        with pytest.raises(ValueError):
            other.load_state_dict(wrong)
    assert not other.state


def test_a_model_without_any_manifold_warns_once():
    model = torch.nn.Linear(3, 3)
    with pytest.warns(ManifoldLostWarning, match="no parameter handed to SRCD has a manifold") as caught:
        SRCD(model.parameters())
    assert len(caught) == 1
    with pytest.raises(ValueError, match="no parameter handed to SRCD has a manifold"):
        SRCD(model.parameters(), strict=True)


def test_weight_decay_on_stiefel_warns_once_and_does_nothing():
    W, V = parameter(5, 5), parameter(5, 5, seed=1)
    with pytest.warns(WeightDecayWarning) as caught:
        opt = SRCD([W, V], lr=0.1, weight_decay=0.5)
    assert len(caught) == 1
    free = parameter(5, 5)
    train(opt, W, quartic((5, 5)), 5)
    train(SRCD([free], lr=0.1), free, quartic((5, 5)), 5)
    assert (W - free).abs().max() < 1e-14


def test_import_is_quiet():
    import subprocess
    import sys

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import riemcd"], capture_output=True, text=True
    )
    assert run.returncode == 0 and not run.stderr, run.stderr


def test_the_swap_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SRCD([parameter(3, 3)], 0.1, 0.9, 0, 0, True, 10)


def test_a_checkpoint_from_another_metric_or_shape_is_refused_even_before_a_step():
    def optimizer(manifold, n=6, p=4):
        return SRCD([geoopt.ManifoldParameter(parameter(n, p).detach(), manifold=manifold)], lr=0.1)

    saved = optimizer(geoopt.EuclideanStiefel()).state_dict()
    optimizer(geoopt.EuclideanStiefel()).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"EuclideanStiefel, .*has one with CanonicalStiefel"):
        optimizer(geoopt.CanonicalStiefel()).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"shape \(6, 4\) .*has one with .*shape \(5, 4\)"):
        optimizer(geoopt.EuclideanStiefel(), 5).load_state_dict(saved)
    saved["param_groups"][0]["points"] = "nothing"
    with pytest.raises(ValueError, match="does not say what each parameter of group 0 is"):
        optimizer(geoopt.EuclideanStiefel()).load_state_dict(saved)


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("lr", NAN, "Invalid learning rate"),
        ("lr", -1.0, "Invalid learning rate"),
        ("nonfinite", "bogus", "nonfinite must be one of"),
        ("stabilize", 0, "stabilize must be at least 1"),
        ("momentum", -1, "Invalid momentum"),
        ("maximize", 1, "maximize must be True or False"),
    ],
)
def test_an_option_edited_between_steps_is_checked_before_anything_moves(name, value, sentence):
    W = parameter(4, 4)
    opt = SRCD([W], lr=0.1)
    W.grad = torch.randn(4, 4, dtype=torch.float64)
    before = W.detach().clone()
    opt.param_groups[0][name] = value
    with pytest.raises((ValueError, TypeError), match=sentence):
        opt.step()
    assert torch.equal(W.detach(), before) and not opt.state
    opt.param_groups[0][name] = opt.defaults[name]
    opt.step()
    assert not torch.equal(W.detach(), before)


def test_the_remedy_for_a_point_off_its_manifold_fits_the_parameter():
    far = 2 * torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Call \.proj_\(\) on the parameter before"):
        SRCD([geoopt.ManifoldParameter(far.clone(), manifold=geoopt.EuclideanStiefel())])
    plain = torch.nn.Parameter(far.clone())
    with pytest.raises(ValueError, match=r"param\.data = manifold\.projx\(param\.data\), before"):
        SRCD([{"params": [plain], "manifold": geoopt.EuclideanStiefel()}])


def test_a_group_without_parameters_and_numbers_beyond_single_precision_are_refused():
    with pytest.raises(ValueError, match="must have 'params'"):
        SRCD([{}])
    with pytest.raises(ValueError, match="Invalid learning rate"):
        SRCD([parameter(3, 3)], lr=1e300)
    with pytest.raises(ValueError, match="Invalid momentum"):
        SRCD([parameter(3, 3)], momentum=1e300)
    with pytest.raises(ValueError, match="meta device"):
        SRCD([parameter(3, 3)], lr=torch.tensor(0.1, device="meta"))


def test_a_gradient_of_another_shape_is_refused_before_anything_moves():
    W, V = parameter(4, 4), parameter(3, 3)
    opt = SRCD([W, V], lr=0.1)
    W.grad, V.grad = (torch.randn(n, n, dtype=torch.float64) for n in (4, 3))
    before = W.detach().clone()
    V.grad.data = torch.ones(7, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the gradient has shape \(7,\) .*nothing was changed"):
        opt.step()
    assert torch.equal(W.detach(), before)


@pytest.mark.parametrize(
    "options, key, value, sentence",
    [
        (
            {"selection": selections.Importance(2)},
            "importance",
            torch.zeros(1),
            "importance .* must have shape",
        ),
        ({"selection": selections.Importance(2)}, "importance", "x", "importance .* must have shape"),
        ({"stepsize": stepsizes.Adam()}, "exp_avg", None, "exp_avg .* must have shape"),
        ({"stepsize": stepsizes.RMSProp()}, "square_avg", "nan", "not a number somewhere"),
    ],
)
def test_state_of_a_checkpoint_that_no_step_could_use_is_refused(options, key, value, sentence):
    W = parameter(4, 4)
    opt = SRCD([W], lr=0.1, **options)
    W.grad = torch.randn(4, 4, dtype=torch.float64)
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0][key] = saved["state"][0][key] * NAN if value == "nan" else value
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=sentence):
        opt.load_state_dict(saved)
    assert str(opt.state_dict()) == str(before)
