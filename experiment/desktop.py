"""Draws a made-up desktop: windows, text, a form or table. As busy as a real screenshot."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, TypeVar

from PIL import Image, ImageDraw, ImageFont, ImageOps

T = TypeVar("T")
Colour = tuple[int, int, int]

WALLPAPERS: tuple[Colour, ...] = ((38, 70, 104), (58, 84, 74), (84, 62, 92), (70, 78, 88))
ACCENTS: tuple[Colour, ...] = ((0, 103, 184), (16, 124, 65), (176, 70, 32), (110, 60, 160))
INK: Colour = (32, 33, 36)
MUTED: Colour = (110, 114, 120)
LINE: Colour = (208, 211, 216)
PAPER: Colour = (252, 252, 253)
BAR: Colour = (236, 238, 241)
PANEL: Colour = (38, 41, 48)

LINES_ON_SCREEN = 45
"""Text lines a screen is high: 12 pixels a line on one of 960x540."""


class Box(NamedTuple):
    """A rectangle in pixels; ``right`` and ``bottom`` are just outside it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """Pixels from left to right; negative where nothing is left of the box."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Pixels from top to bottom; negative where nothing is left of the box."""
        return self.bottom - self.top

    def inset(self, by: int) -> Box:
        """The box without a rim of ``by`` pixels."""
        return Box(self.left + by, self.top + by, self.right - by, self.bottom - by)


def paint_desktop(width: int, height: int, words: Sequence[str], rng: Random) -> Image.Image:
    """An RGB image of ``width`` x ``height`` pixels that shows a desktop with two windows.

    Everything that differs between two desktops of one size is drawn from ``rng``.
    """
    return _Painter(width, height, words, rng).paint()


class _Painter:
    def __init__(self, width: int, height: int, words: Sequence[str], rng: Random) -> None:
        self.words = words
        self.rng = rng
        self.unit = max(6, min(28, height // LINES_ON_SCREEN))
        self.font = ImageFont.load_default(size=self.unit)
        self.accent = self._pick(ACCENTS)
        shade = Image.linear_gradient("L").resize((width, height))
        wallpaper = self._pick(WALLPAPERS)
        light = (wallpaper[0] + 60, wallpaper[1] + 60, wallpaper[2] + 60)
        self.image = ImageOps.colorize(shade, black=light, white=wallpaper)
        self.draw = ImageDraw.Draw(self.image)

    def paint(self) -> Image.Image:
        width, height = self.image.size
        unit = self.unit
        panel = Box(0, height - 2 * unit - 4, width, height)
        split = int(width * (0.52 + 0.16 * self.rng.random()))
        back = Box(self._number(2, 3 * unit), self._number(2, 2 * unit), split, panel.top - unit)
        front = Box(split - self._number(0, 6 * unit), 4 * unit, width - unit, panel.top - 2 * unit)
        self._document(self._window(back))
        draw_body = self._form if self.rng.random() < 0.5 else self._table
        draw_body(self._window(front))
        self._taskbar(panel)
        return self.image

    # Random.random() alone is promised to give the same numbers in every Python version.
    def _number(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.random() * len(choices))]

    def _fill(self, box: Box, fill: Colour, outline: Colour | None = None) -> None:
        if box.width > 0 and box.height > 0:
            corners = (box.left, box.top, box.right - 1, box.bottom - 1)
            self.draw.rectangle(corners, fill=fill, outline=outline)

    def _text(self, left: int, top: int, width: int, fill: Colour = INK, text: str = "") -> None:
        """One line of ``text``, or of words that fill ``width``, cut to it."""
        letters = int(width / (0.52 * self.unit))
        while not text or (len(text) < letters and text[-1] == " "):
            text += self._pick(self.words) + " "
        if letters > 0:
            self.draw.text((left, top), text[:letters], fill=fill, font=self.font)

    def _window(self, box: Box) -> Box:
        """Draws frame and title bar; gives what is left for the content."""
        unit = self.unit
        self._fill(Box(*(edge + 3 for edge in box)), PANEL)  # its shadow
        self._fill(box, PAPER, outline=MUTED)
        title = Box(box.left + 1, box.top + 1, box.right - 1, box.top + 2 * unit)
        self._fill(title, BAR)
        self._text(title.left + unit, title.top + unit // 3, title.width // 2)
        for place, colour in enumerate(((214, 84, 76), (222, 174, 66), (98, 170, 88))):
            right = title.right - unit // 2 - place * (unit + unit // 2)
            self._fill(Box(right - unit, title.top + 4, right, title.bottom - 4), colour)
        menu = Box(title.left, title.bottom, title.right, title.bottom + 2 * unit)
        for left in range(menu.left + unit, menu.right - 5 * unit, 6 * unit):
            self._text(left, menu.top + unit // 3, 5 * unit, MUTED, self._pick(self.words).title())
        self._fill(Box(menu.left, menu.bottom - 1, menu.right, menu.bottom), LINE)
        return Box(title.left, menu.bottom, title.right, box.bottom - 1)

    def _document(self, box: Box) -> None:
        """A list at the side, headings and paragraphs, a scroll bar."""
        unit = self.unit
        side = Box(box.left, box.top, box.left + box.width // 4, box.bottom)
        self._fill(side, BAR)
        for top in range(side.top + unit, side.bottom - 2 * unit, 2 * unit):
            selected = self.rng.random() < 0.1
            if selected:
                self._fill(Box(side.left, top, side.right, top + 2 * unit), self.accent)
            ink = PAPER if selected else MUTED
            self._text(side.left + unit, top + unit // 3, side.width - 2 * unit, ink)
        page = Box(side.right + unit, box.top + unit, box.right - 2 * unit, box.bottom - unit)
        for top in range(page.top, page.bottom - unit, unit + unit // 3 + 1):
            kind = self.rng.random()
            if kind < 0.1:
                self._text(page.left, top, page.width // 2, self.accent)
            elif kind < 0.85:
                self._text(page.left, top, int(page.width * (0.6 + 0.4 * self.rng.random())))
        track = Box(box.right - unit, box.top, box.right, box.bottom)
        self._fill(track, BAR)
        top = track.top + int(0.6 * self.rng.random() * track.height)
        self._fill(Box(track.left + 2, top, track.right - 2, top + track.height // 4), LINE)

    def _table(self, box: Box) -> None:
        """A head, rows in two shades, a column of words and columns of numbers."""
        unit = self.unit
        columns = self._number(3, 5)
        step = max(1, box.width // columns)
        for row, top in enumerate(range(box.top, box.bottom - 2 * unit, 2 * unit)):
            shade = LINE if row == 0 else (PAPER, BAR)[row % 2]
            self._fill(Box(box.left, top, box.right, top + 2 * unit), shade)
            for column in range(columns):
                number = f"{self._number(0, 99_999) / 100:,.2f}" if row and column else ""
                left = box.left + column * step + unit // 2
                self._text(left, top + unit // 3, step - unit, text=number)
        for column in range(1, columns):
            left = box.left + column * step
            self._fill(Box(left, box.top, left + 1, box.bottom), LINE)

    def _form(self, box: Box) -> None:
        """Labels with fields, two buttons below."""
        unit = self.unit
        inner = box.inset(unit)
        buttons = Box(inner.left, inner.bottom - 2 * unit, inner.right, inner.bottom)
        for top in range(inner.top, buttons.top - 3 * unit, 3 * unit):
            field = Box(inner.left + inner.width // 3, top, inner.right, top + 2 * unit)
            self._text(inner.left, top + unit // 3, inner.width // 3 - unit, MUTED)
            self._fill(field, PAPER, outline=LINE)
            if self.rng.random() < 0.7:
                filled = int(field.width * (0.3 + 0.6 * self.rng.random()))
                self._text(field.left + unit // 2, top + unit // 3, filled - unit)
        for place, (fill, ink) in enumerate(((self.accent, PAPER), (LINE, INK))):
            right = buttons.right - place * 9 * unit
            self._fill(Box(right - 8 * unit, buttons.top, right, buttons.bottom), fill)
            label = self._pick(self.words).title()
            self._text(right - 7 * unit, buttons.top + unit // 3, 7 * unit, ink, label)

    def _taskbar(self, box: Box) -> None:
        """A start button, squares for programs, a clock."""
        unit = self.unit
        self._fill(box, PANEL)
        self._fill(Box(box.left, box.top, box.left + 3 * unit, box.bottom), self.accent)
        for left in range(box.left + 4 * unit, box.left + box.width // 2, 3 * unit):
            icon = Box(left, box.top + 3, left + 2 * unit - 2, box.bottom - 3)
            self._fill(icon, self._pick(ACCENTS), outline=LINE)
        clock = f"{self._number(0, 23):02}:{self._number(0, 59):02}"
        self._text(box.right - 4 * unit, box.top + unit // 2, 4 * unit, PAPER, clock)
