"""
Joint diagonalisation: one basis for many matrices
==================================================

Symmetric matrices that commute have the same eigenvectors. Measured ones almost do: covariances of a
signal at several delays, or of several recordings of it. Which orthonormal basis makes all of them as
diagonal as possible? With :math:`\\mathrm{off}(C)` the sum of the squares beside the diagonal, minimise

.. math:: f(X) = \\sum_k \\mathrm{off}(X^\\top A_k X), \\qquad X^\\top X = I .

When two columns of :math:`X` are turned by an angle :math:`\\theta`, the loss follows a cosine,
:math:`a + b \\cos(4\\theta - \\varphi)`. Its lowest point is known: there is no step size to choose.
``riemcd.minimize`` turns all pairs of columns to their best angles, sweep after sweep. For a single
matrix this is Jacobi's method of 1846.
"""

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import torch

import riemcd

torch.set_num_threads(1)  # the matrices are small
torch.manual_seed(0)
plt.rcParams.update({"font.size": 12, "axes.titlesize": 12})

# %%
# The matrices
# ------------
# Six matrices of size 16 with common eigenvectors :math:`Q` and random eigenvalues. To each a symmetric
# matrix of noise is added, so many times as large as the matrix itself.

COUNT, SIZE = 6, 16
NOISES = (0.0, 1e-3, 0.1, 0.3)

Q = riemcd.nn.init.haar_(torch.empty(SIZE, SIZE, dtype=torch.float64))
exact = (Q * torch.randn(COUNT, 1, SIZE, dtype=torch.float64)) @ Q.mT
disturbance = torch.randn(COUNT, SIZE, SIZE, dtype=torch.float64)
disturbance = disturbance + disturbance.mT
disturbance *= torch.linalg.matrix_norm(exact).mean() / torch.linalg.matrix_norm(disturbance).mean()
given = {noise: exact + noise * disturbance for noise in NOISES}

# %%
# Solving
# -------
# All start from a random orthogonal matrix. A sweep turns every pair of columns once. With ``tol=0`` it
# goes on until the rotations are as small as rounding.

start = riemcd.nn.init.haar_(torch.empty(SIZE, SIZE, dtype=torch.float64))
found = {
    noise: riemcd.minimize(riemcd.problems.JointDiagonalization(A), start, tol=0.0, max_sweeps=60)
    for noise, A in given.items()
}

# %%
# Did it find the eigenvectors? Their order and signs are arbitrary: each true one is compared with the
# column nearest to it. The eigenvectors of one of the matrices alone have the same noise and less to go
# by; where two eigenvalues are close, a little noise mixes their vectors.


def degrees(X):
    """Return the mean angle between the columns of Q and the nearest ones of X."""
    return torch.rad2deg(torch.acos((Q.mT @ X).abs().amax(1).clamp(max=1.0))).mean().item()


print("noise   sweeps   entries off the diagonal   degrees off Q: jointly   of one matrix")
for noise, minimum in found.items():
    share = (minimum.value / given[noise].square().sum()).sqrt().item()
    alone = torch.linalg.eigh(given[noise][0]).eigenvectors
    print(
        f"{noise:5.3f} {minimum.sweeps:8d} {share:26.1e} "
        f"{degrees(minimum.point):24.1e} {degrees(alone):15.1e}"
    )

# %%
# Before and after
# ----------------
# Without noise nothing is left beside the diagonal. With noise the diagonals stand out of it: no
# rotation makes it smaller.


def image(axes, matrix, title):
    """Show a matrix, near white for zero."""
    axes.imshow(matrix.numpy(), cmap="PuOr", vmin=-1, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title)


noisy = NOISES[-1]
figure, axes = plt.subplots(2, 4, figsize=(6.8, 4.1), layout="constrained")
for column, (noise, k) in enumerate([(0.0, 0), (0.0, 1), (noisy, 0), (noisy, 1)]):
    A, X = given[noise][k], found[noise].point
    image(axes[0, column], A, f"$A_{k + 1}$" if noise == 0 else f"$A_{k + 1}$ + noise")
    image(axes[1, column], X.mT @ A @ X, f"$X^\\top A_{k + 1} X$")
axes[0, 0].set_ylabel("given")
axes[1, 0].set_ylabel("turned")
figure.suptitle(f"{COUNT} matrices, one basis; two of them, exact and with {noisy:.0%} noise", fontsize=13)
bar = figure.colorbar(axes[0, 0].images[0], ax=axes, location="bottom", shrink=0.5, aspect=35, extend="both")
bar.set_label("entry of the matrix")
plt.show()

# %%
# How the sweeps end
# ------------------
# When the matrices commute, the last sweeps double the number of correct digits: convergence is
# quadratic, down to rounding. With noise something stays beside the diagonals, and each rotation spoils
# the others by that much. The last sweeps then gain a constant factor each, a larger one where there is
# less noise.

look = dict(
    zip(NOISES, (("#0072B2", "o"), ("#009E73", "s"), ("#E69F00", "^"), ("#D55E00", "D")), strict=True)
)
figure, (loss, slope) = plt.subplots(2, 1, figsize=(6.6, 7.4), sharex=True, layout="constrained")
for noise, minimum in found.items():
    colour, marker = look[noise]
    total = given[noise].square().sum().item()
    style = {"color": colour, "marker": marker, "markersize": 5}
    sweeps = [sweep.number for sweep in minimum.history]
    label = f"noise {noise:g}" if noise else "no noise"
    loss.semilogy(sweeps, [sweep.value / total for sweep in minimum.history], label=label, **style)
    slope.semilogy(sweeps, [sweep.gradient_norm / total for sweep in minimum.history], label=label, **style)
loss.set(ylabel=r"$f$, share of all squares", title="What is left beside the diagonals")
slope.set(xlabel="sweep", ylabel=r"$\|\mathrm{grad}\,f\|$, in the same units", title="The gradient")
for axes in (loss, slope):
    axes.grid(alpha=0.3)
slope.legend()
plt.show()
