"""Messages on a terminal: one paragraph each."""

import textwrap

WIDTH = 99


def paragraph(text: str) -> str:
    """A message as one paragraph, wrapped; paths and literals stay whole."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
