"""Files of lines: nothing that was written whole is ever lost, nothing damaged is ever believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest

from clnn.cache import files, lines
from clnn.cache.lines import LineFile, decode, encode
from clnn.cache.store import CacheWarning


@pytest.fixture
def line_file(tmp_path, quick_disk):
    return LineFile(tmp_path / "deep" / "a.jsonl")


def rows(*numbers):
    return [{"n": n, "text": "x" * n} for n in numbers]


def test_lines_come_back_in_order(line_file):
    assert line_file.read() == []
    assert line_file.append(rows(1, 2)) and line_file.append(rows(3))
    assert line_file.read() == rows(1, 2, 3)
    text = line_file.path.read_text()
    assert [json.loads(line)["n"] for line in text.splitlines()] == [1, 2, 3]


def test_every_truncation_keeps_all_whole_lines(line_file):
    line_file.append(rows(1, 2, 3))
    whole = line_file.path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        line_file.path.write_bytes(whole[:size])
        kept = sum(end <= size for end in ends)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert LineFile(line_file.path).read() == rows(1, 2, 3)[:kept]
        fresh = LineFile(line_file.path)
        assert fresh.append(rows(9))
        assert fresh.read() == [*rows(1, 2, 3)[:kept], *rows(9)]


def test_no_changed_byte_is_believed(line_file):
    line_file.append(rows(1, 2, 3))
    whole = line_file.path.read_bytes()
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1
        line_file.path.write_bytes(bytes(broken))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            found = LineFile(line_file.path).read()
        assert all(row in rows(1, 2, 3) for row in found)
        assert len(found) >= 1


def test_damage_is_told_once(line_file):
    line_file.append(rows(1, 2))
    with line_file.path.open("ab") as out:
        out.write(b'{"n": 5}\nnot json\n\xff\xfe\n')
    fresh = LineFile(line_file.path)
    with pytest.warns(CacheWarning, match="3 damaged lines") as told:
        assert fresh.read() == fresh.read() == rows(1, 2)
    assert len(told) == 1 and fresh.bad == 3


@pytest.mark.parametrize("line", [b"", b"[]", b"1", b'{"sum": "0"}', b'{"n": 1}', b"[" * 100000])
def test_what_is_no_line(line):
    assert decode(line) is None


def test_a_line_does_not_depend_on_the_order_of_its_members():
    assert decode(encode({"a": 1, "b": [2.5, None]})) == {"a": 1, "b": [2.5, None]}
    swapped = json.dumps(dict(reversed(json.loads(encode({"a": 1, "b": 2})).items()))).encode()
    assert decode(swapped) == {"a": 1, "b": 2}


def test_modes(tmp_path, line_file):
    line_file.append(rows(1))
    assert not LineFile(line_file.path, "ro").append(rows(2))
    assert LineFile(line_file.path, "ro").read() == rows(1)
    assert LineFile(line_file.path, "off").read() == []


def test_compaction_is_all_or_nothing(line_file, monkeypatch):
    line_file.append(rows(1, 2, 3))
    line_file.rewrite(lambda found: found[1:])
    assert line_file.read() == rows(2, 3)

    def fail(*words):
        raise OSError("disk is full")

    monkeypatch.setattr(files, "write_all", fail)
    with pytest.warns(CacheWarning, match="disk is full"):
        line_file.rewrite(lambda found: [])
    monkeypatch.undo()
    assert line_file.read() == rows(2, 3)
    assert [p.name for p in line_file.path.parent.iterdir() if p.name.startswith(".new")] == []


def test_a_folder_in_the_way_and_a_link_are_refused(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.warns(CacheWarning, match="not a regular file"):
        assert LineFile(tmp_path / "a.jsonl").read() == []
    target = tmp_path / "target"
    target.write_bytes(encode({"n": 1}))
    (tmp_path / "b.jsonl").symlink_to(target)
    with pytest.warns(CacheWarning):
        assert not LineFile(tmp_path / "b.jsonl").append([{"n": 2}])
    assert target.read_bytes() == encode({"n": 1})


def test_a_held_lock_is_waited_for_and_then_given_up(line_file, monkeypatch):
    line_file.append(rows(1))
    monkeypatch.setattr(lines, "LOCK_S", 0.05)
    with lines.locked(line_file.path), pytest.warns(CacheWarning, match="cannot be written"):
        assert not LineFile(line_file.path).append(rows(2))
    assert line_file.append(rows(3)) and line_file.read() == rows(1, 3)


WRITER = """
import sys
from pathlib import Path
from clnn.cache.lines import LineFile
lines = LineFile(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    assert lines.append([{"who": sys.argv[2], "n": n, "pad": "p" * (n % 50)}])
    if n == 0:
        print("going", flush=True)
    if n % 7 == 3:
        lines.rewrite(lambda found: found)
"""


def start(path, who, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), who, str(count)], stdout=subprocess.PIPE
    )


def test_two_writers_lose_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    for child in [start(path, who, 40) for who in ("a", "b")]:
        child.communicate()
        assert child.returncode == 0
    found = LineFile(path).read()
    for who in ("a", "b"):
        assert [r["n"] for r in found if r["who"] == who] == list(range(40))


def test_a_writer_that_is_killed_loses_no_line_and_blocks_nobody(tmp_path):
    path = tmp_path / "a.jsonl"
    for _ in range(5):
        child = start(path, "a", 10**6)
        assert child.stdout.readline() == b"going\n"
        child.kill()
        child.communicate()
        before = len(LineFile(path).read())
        assert before >= 1
        assert LineFile(path).append([{"who": "b", "n": 0}])
        assert len(LineFile(path).read()) == before + 1
    assert not any(line and decode(line) is None for line in path.read_bytes().split(b"\n"))
    assert os.path.getsize(path) > 0
