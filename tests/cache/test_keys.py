from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn.cache import fields_key, program_key
from clnn.cache.keys import is_key

FIELDS = ("source", "options", "device_name", "driver_version", "platform_version", "abi")
BASE = {
    "source": "kernel void f(global float *x) { *x = 0; }",
    "options": "-cl-std=CL1.2 -DN=4",
    "device_name": "Portable CPU",
    "driver_version": "3.1",
    "platform_version": "OpenCL 3.0 PoCL 3.1",
    "abi": "1",
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("change", [lambda t: t + " ", lambda t: "", lambda t: t[:-1]])
def test_every_field_counts(field, change):
    """No stale binary is found: a change of source, options, device, driver or ABI is a miss."""
    other = {**BASE, field: change(BASE[field])}
    assert program_key(**other) != program_key(**BASE)


def test_same_inputs_same_key_and_its_form():
    assert program_key(**BASE) == program_key(**dict(reversed(BASE.items())))
    assert is_key(program_key(**BASE))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["abc"], ["ab", "c"]),
        (["a", ""], ["a"]),
        (["", "a"], ["a", ""]),
        (["a"], [b"a"]),
        ([], [""]),
        (["a\0b"], ["a", "b"]),
        (["é"], ["e\u0301"]),
    ],
)
def test_no_ambiguity_between_fields(one, other):
    assert fields_key("d", one) != fields_key("d", other)


def test_domain_is_not_a_field():
    assert fields_key("d", ["a"]) != fields_key("a", ["d"])
    assert fields_key("program", ["a"]) != fields_key("tuning", ["a"])


def test_text_moved_between_neighbouring_arguments():
    moved = {**BASE, "device_name": "Portable CPU3", "driver_version": ".1"}
    assert program_key(**moved) != program_key(**BASE)


def test_options_as_a_list_keep_their_boundaries():
    lists = [["-a", "-b"], ["-a -b"], ["-b", "-a"], ["-a", "-b", ""]]
    keys = {program_key(**{**BASE, "options": o}) for o in lists}
    assert len(keys) == len(lists)
    assert program_key(**{**BASE, "options": "-a -b"}) == program_key(
        **{**BASE, "options": ["-a -b"]}
    )


def test_options_never_run_into_the_device():
    one = program_key("s", ["-a"], "dev", "drv", "pv", "1")
    other = program_key("s", ["-a", "dev"], "drv", "pv", "1", "")
    assert one != other


def test_undecodable_driver_names_have_a_key():
    name = b"GPU \xff".decode("utf-8", "surrogateescape")
    assert program_key("s", "", name, "1", "2", "3") != program_key("s", "", "GPU ?", "1", "2", "3")


def test_digest_is_the_documented_one():
    parts = [(b"s", b"d"), (b"s", b"x"), (b"b", b"yz")]
    text = b"".join(kind + len(data).to_bytes(8, "little") + data for kind, data in parts)
    assert fields_key("d", ["x", b"yz"]) == hashlib.sha256(text).hexdigest()


field = st.text(max_size=6) | st.binary(max_size=6)


@given(st.lists(field, max_size=4), st.lists(field, max_size=4))
@settings(deadline=None)
def test_keys_are_equal_only_for_equal_fields(one, other):
    assert (fields_key("d", one) == fields_key("d", other)) == (one == other)


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n"]
)
def test_what_is_no_key(text):
    assert not is_key(text)
