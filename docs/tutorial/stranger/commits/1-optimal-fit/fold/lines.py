"""Optimal fit: the breaks with the least sum of squared gaps at the ends of all lines but the last."""


def fold(text: str, width: int = 79) -> list[str]:
    """The lines of one paragraph. Words are never split; a word longer than `width` gets a line of its own."""
    words = text.split()
    # cost[i]: the least cost of words[i:]; stop[i]: where the first line of that optimum ends
    cost = [0.0] * (len(words) + 1)
    stop = [len(words)] * (len(words) + 1)
    for first in range(len(words) - 1, -1, -1):
        cost[first] = float("inf")
        used = -1
        for end in range(first + 1, len(words) + 1):
            used += 1 + len(words[end - 1])
            if used > width and end > first + 1:
                break
            gap = 0 if end == len(words) else max(0, width - used)
            if gap**2 + cost[end] < cost[first]:
                cost[first], stop[first] = gap**2 + cost[end], end
    lines: list[str] = []
    first = 0
    while first < len(words):
        lines.append(" ".join(words[first : stop[first]]))
        first = stop[first]
    return lines
