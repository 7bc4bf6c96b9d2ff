"""The layouts of CUPTI's records, and which version takes which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti._constants import RecordKind
from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, find_layouts
from scripts import cupti_layouts

HEADER = """
typedef enum {
  /** Nothing. */
  CUPTI_ACTIVITY_KIND_INVALID = 0,
  /** A copy. The record is \\ref CUpti_ActivityMemcpy. */
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  /** Without a number: one more than the last. See \\ref CUpti_ActivityNew. */
  CUPTI_ACTIVITY_KIND_NEW,
  /** The count. */
  CUPTI_ACTIVITY_KIND_COUNT,
} CUpti_ActivityKind;
typedef struct {
  uint64_t start;
} CUpti_ActivityMemcpy9;
typedef struct {
  uint64_t start; /* uint64_t end; */ uint32_t graphNodeIds; uint8_t bytes[4];
} CUpti_ActivityMemcpy10;
typedef struct {
  uint64_t start;
} CUpti_ActivityNew;
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_lie_inside_their_records(version):
    layouts = find_layouts(version)
    assert layouts.version == version
    for kind, table in layouts.fields.items():
        for offset, format_ in table.values():
            assert 4 <= offset <= layouts.sizes[kind] - np.dtype(format_).itemsize


@pytest.mark.parametrize(
    ("version", "known"),
    [(18, 18), (28, 28), (130000, 130000), (130002, 130001), (130203, 130202), (130502, 130500)],
)
def test_update_of_a_known_minor_version_is_known(version, known):
    assert find_layouts(version).version == known


@pytest.mark.parametrize("version", [0, -1, 17, 19, 25, 29, 1000, 129999, 130600, 139900, 140000, 2**32])
def test_other_version_is_unknown(version):
    assert find_layouts(version) is None


def test_sizes_are_what_others_have_measured():
    # Source: FACTS.md (216 bytes in 13.0), and the dtypes that cupti-python 13.0 ships.
    sizes = find_layouts(130001).sizes
    assert {kind: sizes[kind] for kind in (10, 9, 12, 5)} == {10: 216, 9: 32, 12: 56, 5: 40}


def test_green_contexts_have_records_of_their_own_from_13_2():
    assert RecordKind.GREEN_CONTEXT not in find_layouts(130101).sizes
    assert [find_layouts(version).sizes[59] for version in (130200, 130201, 130400)] == [152, 168, 304]


def test_every_kind_that_is_read_exists_in_the_newest_version():
    assert set(find_layouts(VERSIONS[-1]).fields) == set(cupti_layouts.FIELDS)


def test_fields_of_one_kind_have_one_format_in_all_versions():
    formats = {}
    for version in VERSIONS:
        layouts = find_layouts(version)
        for kind, table in layouts.fields.items():
            every = {name: format_ for name, (_, format_) in table.items()} | dict(layouts.missing[kind])
            assert formats.setdefault(kind, every) == every
            assert set(every) == {path.split(".")[-1] for path in cupti_layouts.FIELDS[kind].split()}


def test_newest_struct_of_a_header_is_found(tmp_path):
    headers = cupti_layouts.Headers(tmp_path, HEADER)
    assert headers.structs() == {1: "Memcpy10", 2: "New"}
    assert [headers.has("Memcpy10", name) for name in ("start", "end", "graphNodeId", "bytes")] == [True, False, False, True]


def test_header_without_kinds_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="give a folder of CUPTI's headers"):
        cupti_layouts.Headers(tmp_path, "").structs()


def test_structs_that_differ_under_one_name_are_an_error():
    one, other = (18, {1: "A"}, {"A": (16, "")}), (20, {1: "A"}, {"A": (24, "")})
    with pytest.raises(ValueError, match="differs from an older one"):
        cupti_layouts.render([one, other])
    with pytest.raises(ValueError, match="name other structs"):
        cupti_layouts.render([one, (18, {1: "B"}, {"B": (16, "")})])


def test_history_holds_changes_only():
    text = cupti_layouts.render([(v, {1: name}, {name: (16, "")}) for v, name in ((18, "A"), (20, "A"), (21, "B"))])
    assert '1: "18:A 21:B",' in text


def test_layouts_cannot_be_changed():
    layouts = find_layouts(130001)
    with pytest.raises(TypeError):
        layouts.sizes[10] = 8
    assert replace(layouts, version=1).version == 1
