"""Bytes that a word takes in a list of 20,000 made-up words. Run it from the top of the repository."""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frontcode import decode, encode

SYLLABLES = [first + second for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u", "an", "er")]


def words(count=20_000, seed=7):
    chance = random.Random(seed)
    made = set()
    while len(made) < count:
        made.add("".join(chance.choice(SYLLABLES) for _ in range(chance.randint(2, 5))))
    return sorted(made)


if __name__ == "__main__":
    listed = words()
    coded = encode(listed)
    if decode(coded) != listed:
        raise SystemExit("the words do not come back")
    print(len(listed), "words")
    print(json.dumps({"bytes_per_word": len(coded) / len(listed)}))
