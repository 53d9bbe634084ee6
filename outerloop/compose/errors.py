"""What can be wrong with fragments and combinations: two classes, each of which names everything wrong at once."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ComposeError", "UnknownIdError"]


def _sentence(problems: Sequence[str]) -> str:
    return problems[0] if len(problems) == 1 else "\n".join(problems)


class ComposeError(ValueError):
    """Fragments that can't be used, or not together. `problems` holds a sentence for each reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(_sentence(self.problems))


class UnknownIdError(KeyError):
    """Ids that name no fragment. `problems` holds a sentence for each, and what else was wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(_sentence(self.problems))

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])
