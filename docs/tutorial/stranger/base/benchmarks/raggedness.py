"""How uneven the right margin is: the mean squared gap between a line's end and the margin, last lines excepted."""

from pathlib import Path

from fold import fold

WIDTHS = range(30, 80)


def main() -> None:
    paragraphs = (Path(__file__).parent / "sample.txt").read_text(encoding="utf-8").split("\n\n")
    gaps: list[int] = []
    for width in WIDTHS:
        for paragraph in paragraphs:
            lines = fold(paragraph, width)
            if [word for line in lines for word in line.split()] != paragraph.split():
                raise SystemExit("raggedness: words were lost, added or moved")
            if any(len(line) > width for line in lines):
                raise SystemExit(f"raggedness: a line is longer than {width} characters")
            gaps += [(width - len(line)) ** 2 for line in lines[:-1]]
    print(f"paragraphs {len(paragraphs)}, widths {WIDTHS[0]} to {WIDTHS[-1]}")
    print(f"raggedness {sum(gaps) / len(gaps):.4f}")


if __name__ == "__main__":
    main()
