"""What the figures of a comparison share: an axis across their width, names, and what a title says is left out."""

from dataclasses import dataclass

from traceql import fmt
from traceql.report.text import cut

MAX_NAME = 60


@dataclass(frozen=True)
class Axis:
    """From the least to the most that is drawn."""

    least: float
    most: float

    def percent(self, value: float) -> float:
        """A place on it, in percent of the width."""
        return round(100 * (value - self.least) / (self.most - self.least), 3)

    @property
    def ends(self) -> tuple[str, str]:
        """Where it begins and ends, in ms."""
        return f"{fmt.ms(self.least)} ms", f"{fmt.ms(self.most)} ms"


def shown_name(text: str) -> str:
    """A name that has room in a figure."""
    return cut(fmt.visible(text), MAX_NAME, "middle")


def of_all(most: int, n: int) -> str:
    """What a title says where not all is shown."""
    return f"; {most} of {fmt.count(n)}" if n > most else ""
