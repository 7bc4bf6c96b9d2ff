"""The layouts of CUPTI's records, and which version takes which."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, RecordKind, find_layouts
from scripts import cupti_layouts

HEADER = """
typedef enum {
  /** Nothing. */
  CUPTI_ACTIVITY_KIND_INVALID = 0,
  /** A copy. The record is \\ref CUpti_ActivityMemcpy. */
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  /** Without a number: one more than the last. See \\ref CUpti_ActivityNew. */
  CUPTI_ACTIVITY_KIND_MEMSET,
  /** The count. */
  /** Nothing that is on with ours: \\ref CUpti_ActivityEvent. */
  CUPTI_ACTIVITY_KIND_EVENT = 6,
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


def test_fields_of_one_kind_have_one_format_in_all_versions():
    formats = {}
    for version in VERSIONS:
        layouts = find_layouts(version)
        assert all(size % 8 == 0 and 8 <= size < 8 * 256 for size in layouts.sizes.values())
        assert set(layouts.fields) == set(cupti_layouts.FIELDS) & set(layouts.sizes) <= set(RecordKind)
        for kind, table in layouts.fields.items():
            every = {name: format_ for name, (_, format_) in table.items()} | dict(layouts.missing[kind])
            assert formats.setdefault(kind, every) == every
            assert set(every) == {path.split(".")[-1] for path in cupti_layouts.FIELDS[kind].split()}
    assert set(formats) == set(cupti_layouts.FIELDS)


def test_newest_struct_of_a_header_is_found(tmp_path):
    headers = cupti_layouts.Headers(tmp_path, HEADER)
    assert headers.structs() == {1: "Memcpy10", 2: "New"}
    assert [headers.has("Memcpy10", name) for name in ("start", "end", "graphNodeId", "bytes")] == [True, False, False, True]
    with pytest.raises(ValueError, match="give a folder of CUPTI's headers"):
        cupti_layouts.Headers(tmp_path, "").structs()


def test_the_table_holds_changes_only():
    field = "start:i8@16"
    text = cupti_layouts.render([(v, {1: (size, field), 6: (24, "")}) for v, size in ((18, 16), (20, 16), (21, 24))])
    assert '1: "18:16 21:24",' in text
    assert text.count(field) == 1
    with pytest.raises(ValueError, match="have other structs"):
        cupti_layouts.render([(18, {1: (16, "")}), (18, {1: (24, "")})])
