"""What all pictures share: colours, scales, checks, saving."""

import os
import warnings
from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure

from graphgpo_jax.log import atomic_write

DPI = 130
SCALES_APART = 4  # ratio of the panels' largest |advantage|: own colour bars
# Grey only close to 0, dark at both ends: size survives a grey print; the sign
# is told by the style of a line, a dash or a number beside the colour.
REDS = (0, '#7a0019'), (0.2, '#c4161f'), (0.44, '#f08a4b')
GREENS = (0.56, '#8fca62'), (0.8, '#1d8f3f'), (1, '#00451f')
POWER = 0.6  # spreads small advantages over the colours
COLOURS = LinearSegmentedColormap.from_list(
  'credit', [*REDS, (0.5, '#c2bb96'), *GREENS]
)
STYLES = {1: 'solid', 0: (0, (1, 1.2)), -1: (0, (3.2, 1.3))}  # by sign
FIELDS = ('advantage', 'distance', 'reachable')  # that pictures read of a panel
INK, FAILED, GREY, ZONE = '#222222', '#4a4a4a', '#bdbdbd', '#eeeeee'


def new_figure(width: float, height: float, **options) -> Figure:
  """An empty figure, inches, that can be drawn without a screen."""
  figure = Figure(figsize=(width, height), dpi=DPI, **options)
  FigureCanvasAgg(figure)
  return figure


def task_steps(steps, task) -> np.ndarray:
  """Indices of the steps of a task.

  Raises:
    ValueError: no such task.
  """
  kept = np.flatnonzero(steps.task == task)
  if not len(kept):
    raise ValueError(f'task: found {task}, allowed: 0..{len(steps.tasks) - 1}')
  return kept


def select(
  steps, results, kept, *, distances: bool = False
) -> dict[str, np.ndarray]:
  """Panel title -> advantages of the kept steps, float64.

  Args:
    distances: whether the first panel must have 'distance' and 'reachable' too.

  Raises:
    ValueError: no panel, an array that is missing or not one per row, or a
      number that is not finite.
  """
  if not results:
    raise ValueError('results: empty, at least one panel is needed')
  credit, size = {}, int(steps.row.max()) + 1
  for name, result in results.items():
    needed = FIELDS if distances and not credit else ('advantage',)
    arrays = _arrays(name, result, needed, size)
    for field, values in arrays.items():
      if not np.isfinite(values[steps.row[kept]]).all():
        word = 'an advantage' if field == 'advantage' else f'a {field}'
        raise ValueError(f'{name}: {word} is not finite')
    credit[name] = arrays['advantage'][steps.row[kept]].astype(np.float64)
  return credit


def _arrays(name, result, needed, size):
  """The arrays of a panel, checked but for their numbers."""
  found = result if isinstance(result, Mapping) else {}
  given = [field for field in FIELDS if field in found]
  arrays = {field: np.asarray(found[field]) for field in given}
  for field in needed:
    if field not in arrays:
      raise ValueError(f'{name}: no {field}, allowed: arrays of credit_steps')
  for field, values in arrays.items():
    kind = bool if field == 'reachable' else float
    fits = values.ndim == 1 and len(values) >= size
    if not fits or not np.can_cast(values.dtype, kind):
      raise ValueError(
        f'{name}: {field}: found {values.dtype} of shape {values.shape}, '
        f'allowed: {kind.__name__}, one per row, here {size}'
      )
  return arrays


def scales(advantages) -> tuple[np.ndarray, bool]:
  """[panels] largest |advantage| to colour by, and whether all have one."""
  largest = np.array([np.abs(a).max() for a in advantages])
  positive = largest[largest > 0] if largest.any() else np.ones(1)
  shared = bool(positive.max() <= SCALES_APART * positive.min())
  fallback = positive.max() if shared else largest
  return np.where(largest > 0, fallback, positive.max()), shared


def norm(scale: float) -> FuncNorm:
  """-scale..scale to 0..1, spread out near 0: one outlier leaves the others
  their colours.
  """
  functions = [
    lambda x, p=p: np.sign(x) * np.abs(x) ** p for p in (POWER, 1 / POWER)
  ]
  return FuncNorm(functions, -scale, scale)


def contrast(colours: np.ndarray) -> list[str]:
  """Per colour [G, 4]: white where it is dark, else ink."""
  light = colours[:, :3] @ np.array([0.299, 0.587, 0.114]) > 0.55
  return np.where(light, INK, 'white').tolist()


def count(number: int, noun: str) -> str:
  """'1 step', '1,200 steps'."""
  return f'{number:,} {noun}{"" if number == 1 else "s"}'


def printable(text, most: int = 60) -> str:
  """At most so many characters of a text, all of which can be drawn."""
  text = ''.join(
    c if c.isprintable() else '\N{REPLACEMENT CHARACTER}' for c in str(text)
  )
  return text if len(text) <= most else f'{text[: most - 3]}...'


def attempt_names(steps, task: int, most: int = 60) -> list[str]:
  """The ids of a task's attempts; printable."""
  return [printable(name, most) for name in steps.attempts[task]]


def set_panel_title(ax, name) -> None:
  """The name of a panel above its axes, whatever is in it."""
  ax.set_title(printable(name), loc='left', fontsize=11, parse_math=False)


def task_title(steps, task: int, title: str | None) -> str:
  """The title as given, or the task's id; printable."""
  return printable(steps.tasks[task] if title is None else title)


def save(figure: Figure, path: str | os.PathLike) -> None:
  """Writes a picture whole or not at all; equal figures give equal bytes.

  Raises:
    ValueError: the suffix is not .png, .svg or .pdf.
  """
  suffix = os.path.splitext(os.fspath(path))[1].lower()
  clock = {'.png': 'Software', '.svg': 'Date', '.pdf': 'CreationDate'}
  if suffix not in clock:
    allowed = ', '.join(clock)
    raise ValueError(f'path: found suffix {suffix!r}, allowed: {allowed}')
  options = {'format': suffix[1:], 'metadata': {clock[suffix]: None}}
  salt = matplotlib.rc_context({'svg.hashsalt': 'graphgpo'})
  with salt, atomic_write(path, 'wb') as file, warnings.catch_warnings():
    # A script without a font here is drawn as boxes; nothing to be done.
    warnings.filterwarnings('ignore', 'Glyph .* missing')
    figure.savefig(file, dpi=DPI, **options)
