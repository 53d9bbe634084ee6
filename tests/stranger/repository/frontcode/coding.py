"""Front coding, one byte for each length: words are UTF-8, sorted, and at most 255 bytes long."""

BLOCK = 4
"""Words from one that is stored whole to the next."""


def shared_bytes(first, second):
    """How many bytes both begin with."""
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return at
    return min(len(first), len(second))


def encode(words):
    """The words as bytes. Raises ValueError for words that are not sorted or too long."""
    coded = bytearray()
    before = b""
    for number, word in enumerate(words):
        text = word.encode()
        if len(text) > 255:
            raise ValueError(f"too long: {word}")
        if number and text < before:
            raise ValueError(f"not sorted: {word}")
        shared = shared_bytes(before, text) if number % BLOCK else 0
        coded += bytes([shared, len(text) - shared]) + text[shared:]
        before = text
    return bytes(coded)


def decode(coded):
    """The words of `encode`."""
    words, before, at = [], b"", 0
    while at < len(coded):
        shared, rest = coded[at], coded[at + 1]
        before = before[:shared] + coded[at + 2 : at + 2 + rest]
        words.append(before.decode())
        at += 2 + rest
    return words
