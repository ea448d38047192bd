"""Real input for applications: rendered pages, photographs, speech and music, files of many kinds.

    python inputs.py FOLDER

makes all of it in FOLDER, the same in each run.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16000  # samples of speech per second
MUSIC_RATE = 22050
LINES = (
    "The quick brown fox jumps over the lazy dog",
    "Invoice 2026-0417   Total: 1,284.50 EUR",
    "Pack my box with five dozen liquor jugs",
    "Departure 08:45  Platform 7  Coach 12",
    "Sphinx of black quartz, judge my vow",
    "Serial No. A7-99231-XK",
    "How vexingly quick daft zebras jump!",
    "Temperature 21.5 C   Humidity 48 %",
    "Bright vixens jump; dozy fowl quack",
    "Order confirmed: 3 items, 2 parcels",
)
CODES = ("7H2K", "x9m4", "AB3D", "5pQz", "k8w2", "LM7T", "3fg6", "R2D2", "h4n9", "W5X8")
ARABIC = (
    "ذهب الولد إلى المدرسة في الصباح",
    "الكتاب على الطاولة",
    "كان الجو جميلا في المدينة القديمة وخرج الناس إلى الشوارع",
    "قرأت القصة مرتين",
)
SPEECH = (
    "Good morning. The train to the coast leaves at nine.",
    "Please hold the line. One moment.",
    "Measure twice, cut once. That is what my father used to say.",
)
PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "camera")


def pages(folder: Path) -> None:
    """Draw ten pages, each of some lines of text, with sizes and greys of their own."""
    from PIL import Image, ImageDraw, ImageFont

    for number in range(10):
        size = 22 + 3 * (number % 4)
        lines = [LINES[(number + k) % len(LINES)] for k in range(3 + number % 4)]
        width, height = 640 + 32 * (number % 3), 60 + len(lines) * (size + 26)
        picture = Image.new("RGB", (width, height), (250 - number, 248, 245))
        draw = ImageDraw.Draw(picture)
        font = ImageFont.load_default(size)
        for row, line in enumerate(lines):
            place = (24 + 5 * number, 30 + row * (size + 26))
            draw.text(place, line, fill=(10 * number % 60, 20, 30), font=font)
        picture.save(folder / f"page{number}.png")


def codes(folder: Path) -> None:
    """Draw short codes, letters turned a little, over some lines."""
    from PIL import Image, ImageDraw, ImageFont

    random = np.random.default_rng(5)
    for number, code in enumerate(CODES):
        picture = Image.new("RGB", (160, 64), (235, 240, 245))
        draw = ImageDraw.Draw(picture)
        for _ in range(4):
            draw.line([int(v) for v in random.integers(0, (160, 64, 160, 64))], (150, 170, 180))
        for place, letter in enumerate(code):
            tile = Image.new("L", (40, 52), 0)
            ImageDraw.Draw(tile).text((6, 4), letter, fill=255, font=ImageFont.load_default(38))
            tile = tile.rotate(float(random.uniform(-15, 15)))
            picture.paste((30, 40, 110), (6 + 37 * place, 6), tile)
        picture.save(folder / f"code{number}.png")


def photographs(folder: Path) -> None:
    """Save photographs that come with scikit-image."""
    from PIL import Image
    from skimage import data

    for name in PHOTOGRAPHS:
        Image.fromarray(np.asarray(getattr(data, name)())).convert("RGB").save(
            folder / f"{name}.png"
        )


def speech(folder: Path) -> None:
    """Have espeak-ng, which PyPI's espeakng-loader brings, speak sentences with pauses."""
    import soundfile
    from scipy.signal import resample_poly

    speak = Speaker()
    parts = [np.zeros(RATE, np.float32)]
    for sentence in SPEECH:
        sound = resample_poly(speak(sentence), RATE, speak.rate).astype(np.float32)
        parts += [sound, np.zeros(RATE * 3 // 4, np.float32)]
    soundfile.write(folder / "speech.wav", np.concatenate(parts), RATE)


class Speaker:
    """The library of espeak-ng. rate: samples per second."""

    SYNCHRONOUS = 2  # a call returns when all has been handed out
    UTF8 = 1

    def __init__(self) -> None:
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate = self._library.espeak_Initialize(self.SYNCHRONOUS, 0, data, 0)
        if self.rate <= 0:
            raise RuntimeError("espeak-ng does not start: its data are not where its package says.")
        self._made: list[np.ndarray] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = kind(self._take)
        self._library.espeak_SetSynthCallback(self._callback)
        self._library.espeak_SetVoiceByName(b"en")

    def _take(self, samples: Any, count: int, events: int) -> int:
        if samples and count > 0:
            self._made.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def __call__(self, sentence: str) -> np.ndarray:
        """Return a sentence as sound, -1 to 1."""
        self._made.clear()
        text = sentence.encode() + b"\0"
        where = ctypes.c_void_p
        refused = self._library.espeak_Synth(
            text, ctypes.c_size_t(len(text)), 0, 1, 0, self.UTF8, where(), where()
        )
        if refused or not self._made:
            raise RuntimeError(f"espeak-ng says nothing for {sentence!r} ({refused}).")
        return np.concatenate(self._made).astype(np.float32) / 32768


def music(folder: Path) -> None:
    """Play a melody with overtones and a bass."""
    import soundfile

    time = np.arange(int(0.4 * MUSIC_RATE)) / MUSIC_RATE
    fade = np.minimum(1, 40 * time) * np.exp(-3 * time)

    def note(pitch: int) -> np.ndarray:
        base = 440 * 2 ** ((pitch - 69) / 12)
        return fade * sum(np.sin(2 * np.pi * base * k * time) / k**1.5 for k in range(1, 7))

    melody = (60, 64, 67, 72, 71, 67, 65, 62, 60, 64, 69, 67)
    sound = np.concatenate([note(p) + 0.6 * note(p - 24 + p % 3) for p in melody])
    soundfile.write(folder / "music.wav", (0.25 * sound).astype(np.float32), MUSIC_RATE)


def files(folder: Path) -> None:
    """Write files of many kinds, to be told apart."""
    import json

    kinds = {
        "a.json": json.dumps({"name": "x", "rows": list(range(80))}, indent=1).encode(),
        "b.html": b"<!DOCTYPE html><html><head><title>T</title></head><body><p>Hi</p></body></html>"
        * 8,
        "c.c": b'#include <stdio.h>\nint main(void)\n{\n    puts("hello");\n    return 0;\n}\n' * 6,
        "d.sh": b'#!/bin/sh\nset -eu\nfor f in *.txt; do\n  echo "$f"\ndone\n' * 6,
        "e.csv": b"name,size,price\n"
        + b"".join(b"item%d,%d,%d.50\n" % (k, k, k) for k in range(90)),
        "f.py": Path(json.__file__).read_bytes(),
        "g.md": b"# Title\n\nSome *text* with [a link](https://example.org).\n\n- one\n- two\n" * 6,
        "h.png": (folder / "page0.png").read_bytes(),
        "i.wav": (folder / "music.wav").read_bytes(),
        "j.bin": np.random.default_rng(1).bytes(6000),
    }
    for name, data in kinds.items():
        (folder / name).write_bytes(data)


def sentences(folder: Path) -> None:
    """Write sentences without their vowels, to be given them."""
    for number, text in enumerate(ARABIC):
        (folder / f"arabic{number}.txt").write_text(text, "utf-8")


def make_all(folder: Path) -> None:
    """Make every input."""
    folder.mkdir(parents=True, exist_ok=True)
    for make in (pages, codes, photographs, speech, music, files, sentences):
        make(folder)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
