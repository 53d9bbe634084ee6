"""First fit: put every word on the current line if it fits, else on the next one."""


def fold(text: str, width: int = 79) -> list[str]:
    """The lines of one paragraph. Words are never split; a word longer than `width` gets a line of its own."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(line)
    return lines
