"""Break paragraphs into lines."""

from fold.lines import fold

__all__ = ["fold"]
