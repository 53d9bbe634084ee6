"""How much of a suite is in a training set: exact matches and shared 13-grams.

Covered: NFKC, lower case, words only; a task's prompt that equals a text of the training set (a field, a message, or a
line of one) at any length; 13-grams of prompt and answer. Not covered: paraphrases, translations, and what the model
saw before; nothing here can rule those out.

13 words: Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C. n-grams that more than 1 % of the
tasks share are the suite's own phrasing and are ignored.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["COMMON_FRACTION", "NGRAM", "Contamination", "contamination", "normalised"]

NGRAM = 13
COMMON_FRACTION = Fraction(1, 100)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Contamination:
    """Which tasks were hit. `fraction` is exact; a submitter may only learn on which side of the limit it lies."""

    tasks: int
    hit: tuple[str, ...]

    @property
    def fraction(self) -> Fraction:
        return Fraction(len(self.hit), self.tasks) if self.tasks else Fraction(0)


def normalised(text: str) -> tuple[str, ...]:
    """The words of a text after NFKC, in lower case."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).lower()))


def _ngrams(words: tuple[str, ...]) -> set[tuple[str, ...]]:
    return {words[at : at + NGRAM] for at in range(len(words) - NGRAM + 1)}


def contamination(tasks: Mapping[str, tuple[str, str]], texts: Iterable[str]) -> Contamination:
    """Tasks (id -> prompt and answer) that stand in any of the training set's texts, in the order of the tasks.

    `texts` is read once and not kept. A prompt without words (an image's name, say) never matches.
    """
    whole: dict[tuple[str, ...], list[str]] = {}
    grams: dict[tuple[str, ...], list[str]] = {}
    for task, (prompt, answer) in tasks.items():
        words = normalised(prompt)
        if words:
            whole.setdefault(words, []).append(task)
        for gram in _ngrams(words) | _ngrams(normalised(answer)):
            grams.setdefault(gram, []).append(task)
    # at least two tasks: in a suite of under 200 one task alone would already be more than 1 %
    most = max(1, int(COMMON_FRACTION * len(tasks)))
    rare = {gram: holders for gram, holders in grams.items() if len(holders) <= most}
    hit: Counter[str] = Counter()
    for text in texts:
        for part in {text, *text.splitlines()} if "\n" in text else (text,):
            hit.update(whole.get(normalised(part), ()))
        if rare:
            for gram in _ngrams(normalised(text)):
                hit.update(rare.get(gram, ()))
    return Contamination(len(tasks), tuple(task for task in tasks if hit[task]))
