"""Whatever comes in: it works, or one sentence says what is wrong and nothing has changed."""

import copy
import io
import math
import warnings

import geoopt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems_for_tests import orthogonal

from riemcd import SRCD, bases, selections, stepsizes

#: The errors a user may meet; everything else is a fault of ours.
WORDS = (ValueError, TypeError)

FEW = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
MANY = settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck), database=None)

NUMBERS = st.one_of(
    st.floats(0, 1),
    st.sampled_from(
        [0, 0.0, 0.1, -0.1, 1e-30, 1e30, math.nan, math.inf, -math.inf, 10**400, -1, True, 1 + 2j]
    ),
    st.sampled_from(
        [None, "0.1", [0.1], {}, torch.tensor(0.1), torch.tensor([0.1]), torch.ones(2), torch.ones(0)]
    ),
    st.sampled_from(
        [torch.tensor(math.nan), torch.tensor([[0.1]]), torch.tensor("a" == "a"), torch.tensor(1j)]
    ),
)
THINGS = st.sampled_from(
    [
        None,
        0,
        1,
        3,
        -2,
        1.5,
        "raise",
        "skip",
        "ignore",
        "all",
        True,
        False,
        [],
        {},
        (),
        object(),
        torch.ones(3),
    ]
)
SELECTIONS = st.sampled_from(
    [
        *(None, selections.Uniform(), selections.Uniform(3), selections.Uniform(10**6), selections.Cyclic(2)),
        *(selections.GaussSouthwell(2), selections.GaussSouthwell(fraction=0.3), selections.All()),
        *(selections.RandomMatching(), selections.RoundRobin(), selections.Uniform, "uniform", 7),
    ]
)
STEPSIZES = st.sampled_from(
    [
        *(
            None,
            stepsizes.Constant(),
            stepsizes.RMSProp(),
            stepsizes.Adam(),
            stepsizes.Exact(),
            stepsizes.Adam,
        ),
        *(stepsizes.Clipped(stepsizes.Constant(), 0.1), "adam", 0.1),
    ]
)
BASES = st.sampled_from(
    [None, bases.RightGivens(), bases.LeftGivens(), bases.EuclideanBasis(), bases.LeftGivens, "givens"]
)
MANIFOLDS = st.sampled_from(
    [
        *(None, geoopt.EuclideanStiefel(), geoopt.CanonicalStiefel(), geoopt.Sphere(), geoopt.Euclidean()),
        *(
            geoopt.SymmetricPositiveDefinite(),
            geoopt.PoincareBall(),
            geoopt.Lorentz(),
            geoopt.Stiefel,
            "stiefel",
        ),
    ]
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("lr", "momentum", "dampening", "weight_decay"), NUMBERS),
        **dict.fromkeys(("nesterov", "maximize", "strict", "skip_weight_grad"), st.booleans() | THINGS),
        "stabilize": st.integers(-1, 3) | THINGS,
        "seed": st.integers(-(2**70), 2**70) | THINGS,
        "nonfinite": st.sampled_from(["raise", "skip", "ignore"]) | THINGS,
        "selection": SELECTIONS,
        "stepsize": STEPSIZES,
        "basis": BASES,
    },
)
SOUND = st.fixed_dictionaries(
    {"lr": st.sampled_from([0.0, 0.1, 3.0]), "nonfinite": st.sampled_from(["raise", "skip", "ignore"])},
    optional={
        "momentum": st.sampled_from([0.0, 0.9]),
        "weight_decay": st.just(0.1),
        "maximize": st.booleans(),
        "stabilize": st.sampled_from([None, 1, 2]),
        "selection": st.sampled_from(
            [None, selections.Uniform(2), selections.GaussSouthwell(2), selections.All()]
        ),
        "stepsize": st.sampled_from([None, stepsizes.RMSProp(), stepsizes.Adam()]),
    },
)


def points(dtype=torch.float32):
    """A square, a tall and a batched point, a table of unit rows, and a plain parameter."""
    stiefel, sphere = geoopt.EuclideanStiefel(), geoopt.Sphere()
    rows = torch.nn.functional.normalize(torch.arange(1.0, 13.0).view(4, 3), dim=-1)
    return [
        geoopt.ManifoldParameter(orthogonal(4, 4).to(dtype), stiefel),
        geoopt.ManifoldParameter(orthogonal(5, 3).to(dtype), stiefel),
        geoopt.ManifoldParameter(orthogonal(2, 3, 3).to(dtype), stiefel),
        geoopt.ManifoldParameter(rows.to(dtype), sphere),
        torch.nn.Parameter(torch.ones(3, 2, dtype=dtype)),
    ]


def frozen(thing):
    """A copy of everything that must not change, with tensors as bytes so that NaN equals NaN."""
    if isinstance(thing, torch.Tensor):
        whole = thing.detach()
        whole = whole.to_dense() if whole.layout is not torch.strided else whole
        kept = whole.clone().contiguous().view(torch.uint8) if whole.dim() and whole.numel() else whole
        return (str(thing.layout), str(whole.dtype), tuple(whole.shape), repr(kept.tolist()))
    if isinstance(thing, dict):
        return {key: frozen(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [frozen(value) for value in thing]
    return repr(thing)


def everything(params, opt=None):
    state = [] if opt is None else [dict(opt.state.get(p, {})) for p in params]
    groups = [] if opt is None else [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    return frozen([[p for p in params], [p.grad for p in params], state, groups])


def works_or_says_why(action, params, opt=None):
    """Run ``action``; after an error of ours everything is as it was."""
    before = everything(params, opt)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action(), None
    except WORDS as error:
        assert str(error) and "\n" not in str(error), error
        assert everything(params, opt) == before, f"changed before {error}"
        return None, error


def step_with(opt, params, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    return works_or_says_why(opt.step, params, opt)


def fuzz_options(options, manifold):
    params = points()
    if manifold is not None:
        params = [{"params": params[-1:], "manifold": manifold}, {"params": params[:-1]}]
    flat = points() if manifold is None else [p for group in params for p in group["params"]]
    params = flat if manifold is None else params
    opt, error = works_or_says_why(lambda: SRCD(params, **options), flat)
    if error is None:
        for seed in range(2):
            step_with(opt, flat, seed)


def fuzz_groups(options, extra):
    first, *rest = points()
    opt = SRCD([first], lr=0.1)
    groups = len(opt.param_groups), len(opt.plans)
    _, error = works_or_says_why(
        lambda: opt.add_param_group({"params": rest, **options, **extra}), [first, *rest], opt
    )
    if error is not None:
        assert (len(opt.param_groups), len(opt.plans)) == groups
        assert step_with(opt, [first])[1] is None
    else:
        step_with(opt, [first, *rest])


KINDS = ("fine", "none", "zero", "nan", "inf", "huge", "tiny", "sparse", "rows", "double", "half", "shape")


def gradient(kind, param, seed):
    """A gradient of one kind; what torch itself does not let anybody assign is left out."""
    grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(seed)).to(param.dtype)
    if kind in ("nan", "inf"):
        grad.view(-1)[seed % grad.numel()] = float(kind)
    return {
        "none": lambda: None,
        "zero": lambda: torch.zeros_like(grad),
        "huge": lambda: grad * 1e37,
        "tiny": lambda: grad * 1e-40,
        "sparse": grad.to_sparse,
        "rows": lambda: grad.to_sparse(1),
        "double": grad.double,
        "half": grad.half,
        "shape": lambda: torch.ones(7),
    }.get(kind, lambda: grad)()


def fuzz_gradients(options, kinds, seed):
    params = points()
    opt, error = works_or_says_why(lambda: SRCD(params, **options), params)
    if error is not None:  # Adam takes no momentum
        return
    step_with(opt, params, seed)
    for number, (param, kind) in enumerate(zip(params, kinds, strict=True)):
        param.grad = None
        try:
            param.grad = gradient(kind, param, seed + number)
        except (RuntimeError, TypeError):
            assert kind in ("double", "half", "shape")  # torch's own words
    for _ in range(2):
        works_or_says_why(opt.step, params, opt)


DAMAGE = (
    "none",
    "truncate",
    "shape",
    "rule",
    "drop",
    "kind",
    "group",
    "steps",
    "state",
    "number",
    "bytes",
    "dtype",
)


def damaged(saved, how, seed):
    """A checkpoint with one thing wrong."""
    saved = copy.deepcopy(saved)
    key = sorted(saved["state"])[seed % len(saved["state"])]
    state, group = saved["state"][key], saved["param_groups"][0]
    buffers = [name for name, value in state.items() if isinstance(value, torch.Tensor)]
    name = buffers[seed % len(buffers)]
    if how == "truncate":
        state[name] = state[name].reshape(-1)[:-1].clone()
    elif how == "shape":
        state["shape"] = [torch.tensor([3, 7]), (3, 7), "3x7", None][seed % 4]
    elif how == "rule":
        group[("selection", "stepsize", "basis", "manifold")[seed % 4]] = "Other()"
    elif how == "drop":
        del [saved, group, state][seed % 3][("param_groups", "params", "shape")[seed % 3]]
    elif how == "kind":
        state[name] = ["momentum", 3.0, [1.0], object()][seed % 4]
    elif how == "group":
        saved["param_groups"] = [[], {}, None, [group, group], [7]][seed % 5]
    elif how == "steps":
        state["step"] = [-1, "five", 2.5, None, torch.tensor(3.0)][seed % 5]
    elif how == "state":
        saved["state"] = [None, [], {key: None}, {key: []}, {"x": {}}][seed % 5]
    elif how == "number":
        group["lr"] = [-1, "fast", None, math.nan, torch.ones(2)][seed % 5]
    elif how == "dtype":
        state[name] = state[name].to(torch.float16)
    return saved


def fuzz_checkpoints(options, how, seed):
    params, others = points(), points()
    opt, error = works_or_says_why(lambda: SRCD(params, **options), params)
    if error is not None:
        return
    other = SRCD(others, **options)
    for number in range(2):
        step_with(opt, params, number)
    step_with(other, others, 5)
    if not opt.state:
        return
    if how == "bytes":
        file = io.BytesIO()
        torch.save(opt.state_dict(), file)
        file = io.BytesIO(file.getvalue()[: -1 - seed % 500])
        with pytest.raises((RuntimeError, EOFError, ValueError, OSError)):
            torch.load(file, weights_only=True)
        return
    saved = damaged(opt.state_dict(), how, seed)
    _, error = works_or_says_why(lambda: other.load_state_dict(saved), others, other)
    if how in ("none", "dtype"):
        assert error is None
    if how == "rule":
        assert error is not None
    step_with(other, others)


PLAIN_KEYS = st.fixed_dictionaries(
    {},
    optional={"manifold": MANIFOLDS, "lrr": st.just(1), "initial_lr": st.just(1.0), "foreach": st.just(True)},
)
CASES = {
    "options": (fuzz_options, (OPTIONS, MANIFOLDS)),
    "groups": (fuzz_groups, (OPTIONS, PLAIN_KEYS)),
    "gradients": (
        fuzz_gradients,
        (SOUND, st.tuples(*[st.sampled_from(KINDS)] * 5), st.integers(0, 1000)),
    ),
    "checkpoints": (fuzz_checkpoints, (SOUND, st.sampled_from(DAMAGE), st.integers(0, 1000))),
}


def fuzz(name, how):
    function, strategies = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how(given(*strategies)(function))()


@pytest.mark.parametrize("name", CASES)
def test_some_hundreds_of_cases(name):
    fuzz(name, FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_cases(name):
    fuzz(name, MANY)
