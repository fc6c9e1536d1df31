"""
Rotating columns: what one step is
==================================

A step of coordinate descent on orthogonal matrices turns two columns in the plane that they span. Nothing
else moves. With an angle :math:`\\theta`, the columns :math:`j` and :math:`l` become

.. math::

   w_j \\leftarrow \\cos\\theta \\; w_j - \\sin\\theta \\; w_l , \\qquad
   w_l \\leftarrow \\sin\\theta \\; w_j + \\cos\\theta \\; w_l .

Lengths stay, right angles stay, and so the matrix stays orthogonal: there is nothing to project and
nothing to factorise. Here ``riemcd.SRCD`` brings a small matrix home to the identity, one pair of columns
at a time, so that every step can be seen.
"""

# sphinx_gallery_thumbnail_number = 1

import base64
import io

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Rectangle
from PIL import Image

from riemcd import SRCD, diagnostics, nn, selections

torch.set_num_threads(1)  # the matrix is small
plt.rcParams.update({"font.size": 12})

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#7F7F7F"

# %%
# The problem
# -----------
# Minimise :math:`f(W) = \tfrac12 \lVert W - I \rVert_F^2` from a random rotation. Its gradient is
# :math:`G = W - I`. The slope along the pair :math:`(j, l)` needs four columns and no matrix product:
#
# .. math::
#
#    \partial_{jl} = \tfrac{1}{\sqrt 2} \bigl( w_j^\top g_l - w_l^\top g_j \bigr) .
#
# ``GaussSouthwell(1)`` takes the pair with the steepest slope, and the columns turn by
# :math:`\theta = -\mathrm{lr} \, \partial_{jl} / \sqrt 2`.

D, STEPS = 8, 70

start = nn.init.haar_(torch.empty(D, D), generator=torch.Generator().manual_seed(5))
start[:, 0] *= torch.linalg.det(start).sign()  # rotations never change the sign of the determinant
identity = torch.eye(D)


def loss(W):
    """Half the squared distance to the identity."""
    return 0.5 * (W - identity).square().sum()


# %%
# Watching the steps
# ------------------
# ``opt.last_step`` tells which coordinates were moved, and how far. Pairs are numbered row by row, as
# ``torch.triu_indices`` lists them. Beside it a plain ``torch.optim.SGD`` walks from the same start to the
# same goal, without knowing that its matrix should stay orthogonal.

W = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
opt = SRCD([W], lr=1.0, selection=selections.GaussSouthwell(1))
pairs = torch.triu_indices(D, D, 1)
film = [(start.clone(), None, 0.0)]  # after every step: the matrix, the pair, the angle in degrees
losses, errors = [loss(W).item()], [diagnostics.constraint_violation(W)]

for _ in range(STEPS):
    opt.zero_grad()
    loss(W).backward()
    opt.step()
    (number,) = opt.last_step.coordinates.values()
    pair = tuple(pairs[:, number[0]].tolist())
    film.append((W.detach().clone(), pair, np.degrees(opt.last_step.largest_angle)))
    losses.append(loss(W).item())
    errors.append(diagnostics.constraint_violation(W))

free = torch.nn.Parameter(start.clone())
plain = torch.optim.SGD([free], lr=0.1)
plain_errors = [diagnostics.constraint_violation(free, W.manifold)]
for _ in range(STEPS):
    plain.zero_grad()
    loss(free).backward()
    plain.step()
    plain_errors.append(diagnostics.constraint_violation(free, W.manifold))

print(f"{'step':>4s} {'columns':>8s} {'angle':>8s} {'loss':>8s} {'|WᵀW − I|':>10s}")
for k in (1, 2, 3, 4, 10, 30, STEPS):
    _, (j, l), angle = film[k]
    print(f"{k:4d} {j + 1:4d}, {l + 1:d} {angle:7.1f}° {losses[k]:9.5f} {errors[k]:9.1e}")
asymmetry = [float((matrix - matrix.T).norm()) for matrix, _, _ in film]
nearest = int(np.argmin(asymmetry[:30]))
print(f"|W − Wᵀ| = {asymmetry[0]:.2f} at the start, {asymmetry[nearest]:.2f} after {nearest} steps")
print(f"plain SGD, farthest on its way: |WᵀW − I| = {max(plain_errors):.2f}")

# %%
# A film strip
# ------------
# The two columns that were just turned are framed. From one step to the next the other six do not change,
# not even in their last bit. Where the loss stays flat for a while, :math:`W` is nearly symmetric. Here
# :math:`\partial_{jl} = (w_{jl} - w_{lj})/\sqrt 2` with entries of :math:`W`, so that a symmetric matrix is a
# saddle. The plain optimizer has the same goal, but what it passes on its way are no rotations.


def draw(axes, matrix, pair, title):
    """Draw a matrix and frame the columns that were turned."""
    image = axes.imshow(matrix, cmap="PRGn", vmin=-1, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=11)
    for column, colour in zip(pair or (), (BLUE, ORANGE), strict=False):
        axes.add_patch(Rectangle((column - 0.5, -0.5), 1, D, fill=False, ec=colour, lw=3, clip_on=False))
    return image


strip = plt.figure(figsize=(6.4, 6.9), layout="constrained")
top, bottom = strip.subfigures(2, 1, height_ratios=(1.55, 1))
cells = top.subplots(2, 4)
for axes, k in zip(cells.flat, (0, 1, 2, 3, 4, 10, 30, STEPS), strict=True):
    matrix, pair, angle = film[k]
    image = draw(axes, matrix, pair, "start" if k == 0 else f"step {k}\nby {angle:.1f}°")
top.colorbar(image, ax=cells, location="bottom", shrink=0.6, aspect=30, label="entry of W", ticks=(-1, 0, 1))
top.suptitle("Two columns turn at every step")

axes = bottom.subplots()
axes.semilogy(losses, color=BLUE, lw=2, label="loss, SRCD")
axes.semilogy(errors, color=BLUE, lw=2, ls=":", label="|WᵀW − I|, SRCD")
axes.semilogy(plain_errors, color=ORANGE, lw=2, ls="--", label="|WᵀW − I|, plain SGD")
axes.set(xlabel="step", ylabel="loss, error", xlim=(0, STEPS), title="The matrix stays orthogonal on its way")
axes.grid(color="0.9")
bottom.legend(fontsize=10, loc="outside lower center", ncols=3, columnspacing=1.2)
plt.show()

# %%
# The same in motion
# ------------------
# On the left the matrix, on the right the plane of the two columns. There they are two arrows of length
# one at a right angle, and they turn together. Dashed is where they were. The line below tells the error
# of orthogonality, which is no more than the rounding of single precision.

SHOWN, PARTS = 20, 3  # steps in the film, and pictures for each

moving, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.8))
moving.subplots_adjust(left=0.02, right=0.98, bottom=0.12, top=0.9, wspace=0.05)
image = draw(left, start, (0, 1), "")
right.add_patch(plt.Circle((0, 0), 1, fill=False, color="0.8"))
was = [right.plot([], [], "--", color=colour, lw=1.5)[0] for colour in (BLUE, ORANGE)]
now = [right.plot([], [], "-o", color=colour, lw=4, ms=9, markevery=[1])[0] for colour in (BLUE, ORANGE)]
names = [right.text(0, 0, "", color=colour, ha="center", va="center") for colour in (BLUE, ORANGE)]
right.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", xticks=[], yticks=[])
right.set_title("", fontsize=11)
right.spines[:].set_visible(False)
caption = moving.text(0.5, 0.03, "", ha="center")


def picture(step, part):
    """Return one picture of a step, when so much of its turn is done."""
    before, (after, pair, angle) = film[step - 1][0], film[step]
    a, b = before[:, pair[0]], before[:, pair[1]]
    turn = float(torch.atan2(after[:, pair[1]] @ a, after[:, pair[0]] @ a)) * part
    cos, sin = np.cos(turn), np.sin(turn)
    shown = before.clone()
    shown[:, pair[0]], shown[:, pair[1]] = cos * a - sin * b, sin * a + cos * b
    image.set_data(shown)
    for n, (old, new) in enumerate((((1, 0), (cos, -sin)), ((0, 1), (sin, cos)))):
        left.patches[n].set_x(pair[n] - 0.5)
        was[n].set_data((0, old[0]), (0, old[1]))
        now[n].set_data((0, new[0]), (0, new[1]))
        names[n].set(position=(1.25 * new[0], 1.25 * new[1]), text=f"$w_{pair[n] + 1}$")
    left.set_title(f"step {step}: columns {pair[0] + 1} and {pair[1] + 1}", fontsize=11)
    right.set_title(f"in their plane: by {angle:.0f}°", fontsize=11)
    caption.set_text(f"loss {losses[step]:.2f},  |WᵀW − I| = {errors[step]:.1e}")
    moving.canvas.draw()
    return Image.fromarray(np.asarray(moving.canvas.buffer_rgba())[..., :3].copy())


class Film:
    """An animation inside the page itself; readers who want no motion see its last picture."""

    def __init__(self, pictures, milliseconds):
        self.gif, self.still = io.BytesIO(), io.BytesIO()
        palette = [one.quantize(64) for one in pictures]
        palette[0].save(
            self.gif, "GIF", save_all=True, append_images=palette[1:], duration=milliseconds, loop=0
        )
        pictures[-1].save(self.still, "PNG")

    def _repr_html_(self):
        gif, still = (base64.b64encode(data.getvalue()).decode() for data in (self.gif, self.still))
        return (
            '<picture><source media="(prefers-reduced-motion: reduce)" '
            f'srcset="data:image/png;base64,{still}">'
            f'<img src="data:image/gif;base64,{gif}" style="max-width: 100%" '
            'alt="Pairs of columns of a matrix turn, one after the other, and it nears the identity">'
            "</picture>"
        )


pictures = [picture(k, (part + 1) / PARTS) for k in range(1, SHOWN + 1) for part in range(PARTS)]
durations = ([120] * (PARTS - 1) + [400]) * SHOWN  # milliseconds; the end of a step stays a while
clip = Film(pictures, [*durations[:-1], 3000])
plt.close(moving)
clip
