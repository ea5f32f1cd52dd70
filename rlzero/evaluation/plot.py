"""The study as a picture: five panels, a group of bars for each model, a colour for each template."""

import os
from collections.abc import Sequence
from typing import Any

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")  # told apart by everyone
_PALE = 0.45


def require_matplotlib() -> None:
    """Raises ImportError with the remedy where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("the plot of a study needs matplotlib, which is not installed; pip install 'rlzero[plot]', "
                          "or leave --output away for the table alone") from None


def save(rows: Sequence[dict[str, Any]], path: str | os.PathLike) -> None:
    """Draws rows of `study.numbers` into a file whose ending is the format, such as .png or .svg."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    templates = list(dict.fromkeys(row["template"] for row in rows))
    figure = Figure(figsize=(9 + 0.3 * len(rows), 6.5), layout="constrained")
    (answering, right, length), (reflecting, relation, legend) = figure.subplots(2, 3)
    draw = _Bars(rows, models, templates)
    draw(answering, "tries to answer", "answering_rate")
    draw(right, f"right (full) and pass@{rows[0]['k']} (pale)", "accuracy", behind="pass_at_k")
    draw(length, "length in tokens", "length_tokens", top=None)
    most = max((row["reflecting_questions"] or 0.0 for row in rows), default=0.0)
    draw(reflecting, "reflects: responses (full), questions (pale)", "reflecting_rate", behind="reflecting_questions",
         top=min(1.0, 1.2 * most) or 0.05)
    draw.dots(relation, "right if it reflects (full), if not (hollow)", "accuracy_reflecting", "accuracy_others")
    legend.legend(*answering.get_legend_handles_labels(), loc="center", frameon=False, title="template")
    legend.set_axis_off()
    figure.savefig(path, dpi=150)


class _Bars:
    """Draws one panel after the other with the same places and colours."""

    def __init__(self, rows, models, templates):
        self._values = {(row["model"], row["template"]): row for row in rows}
        self._models, self._templates = models, templates

    def __call__(self, axes, title, name, *, behind=None, top=1.0):
        for template, colour, places, width in self._groups():
            if behind:
                axes.bar(places, self._column(behind, template), width, color=colour, alpha=_PALE)
            axes.bar(places, self._column(name, template), width, color=colour, label=template)
        self._finish(axes, title, top)

    def dots(self, axes, title, full, hollow):
        """Draws two values as dots, neither of which can hide the other."""
        for template, colour, places, _ in self._groups():
            axes.plot(places, self._column(hollow, template), "o", color=colour, markerfacecolor="none", markersize=9)
            axes.plot(places, self._column(full, template), "o", color=colour, markersize=5)
        self._finish(axes, title, top=1.0)

    def _groups(self):
        """Template, colour, places and width of the bars of each template."""
        width = 0.8 / len(self._templates)
        for number, template in enumerate(self._templates):
            shift = (number - (len(self._templates) - 1) / 2) * width
            yield (template, _COLOURS[number % len(_COLOURS)], [place + shift for place in range(len(self._models))],
                   0.9 * width)

    def _finish(self, axes, title, top):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xticks(range(len(self._models)), self._models)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(-0.6, len(self._models) - 0.4)
        axes.set_ylim(0, top)
        if top is not None:
            axes.yaxis.set_major_formatter("{x:.0%}")

    def _column(self, name, template):
        """A value for each model; nothing is drawn where a model was not asked under this template."""
        found = [self._values.get((model, template), {}).get(name) for model in self._models]
        return [float("nan") if value is None else value for value in found]
