"""Kernel categories: the built-in rows against their examples and real traces, and a user's file."""

import gzip
import itertools
import json
import re
from collections import Counter, defaultdict
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from traceql.categories import GROUPS, Categories, load_categories
from traceql.errors import RuleError
from traceql.names import copy_dtypes

SHARED = Path(__file__).parents[2] / "shared" / "traces"
BUILT_IN = load_categories()
ROWS = [pytest.param(number, id=f"{row.category}-{number}") for number, row in enumerate(BUILT_IN.rows)]


# --- the built-in file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ROWS)
def test_a_row_is_the_first_that_finds_its_examples(number: int) -> None:
    row = BUILT_IN.rows[number]
    assert BUILT_IN.first_rows(row.examples, [row.kind] * len(row.examples)) == [number] * len(row.examples)


@pytest.mark.parametrize("number", ROWS)
def test_a_row_does_not_take_its_traps(number: int) -> None:
    row = BUILT_IN.rows[number]
    found = BUILT_IN.classify(row.counterexamples, [row.kind] * len(row.counterexamples))
    assert row.category not in found


def test_names_and_colors_are_unique_and_groups_known() -> None:
    categories = BUILT_IN.categories
    assert len({category.name for category in categories}) == len(categories)
    assert len({category.color for category in categories}) == len(categories)
    assert {category.group for category in categories} == set(GROUPS)
    assert all(BUILT_IN.group(category.name) == category.group for category in categories)
    assert all(category.doc and "\n" not in category.doc for category in categories)


def test_every_category_but_other_has_a_row() -> None:
    assert {row.category for row in BUILT_IN.rows} == {category.name for category in BUILT_IN.categories} - {"other"}


def test_no_example_stands_twice() -> None:
    counts = Counter(example for row in BUILT_IN.rows for example in row.examples)
    assert [example for example, count in counts.items() if count > 1] == []


def test_colors_differ_for_readers_with_red_green_blindness() -> None:
    seen = [_as_seen(category.color) for category in BUILT_IN.categories]
    nearest = min(np.linalg.norm(a - b, axis=-1).min() for a, b in itertools.combinations(seen, 2))
    assert nearest > 15  # CIELAB units; about 2 is just noticeable side by side


def _as_seen(color: str) -> np.ndarray:
    """CIELAB of a color for normal, deuteranope and protanope vision (Machado et al. 2009)."""
    vision = [
        np.eye(3),
        np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
        np.array(
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ]
        ),
    ]
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = np.stack([to_xyz @ np.clip(matrix @ linear, 0, 1) for matrix in vision]) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)


# --- classify ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("gather_cast_kernel", "kv_cache"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "copy"),
        ("allreduce_fusion_kernel_oneshot_lamport_rmsnorm", "comm"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", "comm"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(int)", "attention"),
        ("gemma_rotary_kernel", "rope"),
        ("_static_quant_fp8", "quantize"),
        ("silu_and_mul_scaled_fp4_quant", "activation"),
        ("void vllm::act_and_mul_quant_kernel<__half>(int)", "activation"),
        ("RopeQuantizeKernel", "rope"),
        ("_w8a8_block_fp8_matmul", "gemm"),
        ("k_a", "other"),
        ("", "other"),
    ],
)
def test_traps_of_the_field(name: str, category: str) -> None:
    assert BUILT_IN.classify([name], ["kernel"]) == [category]


def test_kind_decides_between_a_copy_engine_and_a_kernel() -> None:
    name = "Memcpy DtoD (Device -> Device)"
    assert BUILT_IN.classify([name, name, name], ["memcpy", "memset", "kernel"]) == [
        "memcpy",
        "memset",
        "other",
    ]


def test_nothing_in_gives_nothing_out() -> None:
    assert BUILT_IN.classify([], []) == []


def test_a_name_is_cut_before_it_is_matched() -> None:
    names = ["x" * 4985 + " nvjet gemv", "x" * 5000 + " nvjet gemv"]
    assert BUILT_IN.classify(names, ["kernel", "kernel"]) == ["gemm", "other"]


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_has_a_known_category(name: str) -> None:
    (category,) = BUILT_IN.classify([name], ["kernel"])
    assert category in {known.name for known in BUILT_IN.categories}


# --- a user's file -------------------------------------------------------------------------------------

USER = """\
categories:
  - {name: my_attention, group: attention, doc: Ours, color: '#123456'}
rows:
  - {category: my_attention, match: [our_fwd, '(?i)OUR_bwd'], examples: [our_fwd_kernel]}
  - {category: gemm, match: gather_cast, examples: [gather_cast_kernel]}
"""


def _load(tmp_path: Path, text: str | bytes) -> Categories:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_categories(path)


def test_a_users_rows_come_first_and_leave_the_rest(tmp_path: Path) -> None:
    mine = _load(tmp_path, USER)
    names = ["our_fwd_kernel", "Our_BWD", "gather_cast_kernel", "fused_moe_kernel"]
    assert mine.classify(names, ["kernel"] * 4) == ["my_attention", "my_attention", "gemm", "moe_gemm"]
    assert BUILT_IN.classify(names, ["kernel"] * 4) == ["other", "other", "kv_cache", "moe_gemm"]
    assert mine.group("my_attention") == "attention"
    assert [category.name for category in mine.categories][-2:] == ["my_attention", "other"]


def test_the_fingerprint_follows_content_not_comments_or_place(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    mine = _load(tmp_path, USER)
    assert mine.fingerprint == _load(tmp_path / "elsewhere", "# mine\n" + USER).fingerprint
    assert mine.fingerprint != _load(tmp_path, USER.replace("our_fwd,", "our_forward,")).fingerprint
    assert mine.fingerprint != BUILT_IN.fingerprint == load_categories().fingerprint


def test_a_users_pattern_cannot_hang(tmp_path: Path) -> None:
    mine = _load(tmp_path, "rows:\n  - {category: gemm, match: '(a+)+$', examples: [a]}\n")
    assert mine.classify(["a" * 4000 + "b"], ["kernel"]) == ["other"]  # 2^4000 steps with backtracking


ROW = "rows:\n  - {category: gemm, match: x, examples: [x]"
FAULTS = {
    "empty": ("", "1:1", "empty"),
    "only a comment": ("# rows\n", "1:1", "empty"),
    "not a mapping": ("- rows\n", "1:1", "expected fields"),
    "no rows": ("categories: []\n", "1:1", "missing: rows"),
    "rows is no list": ("rows: gemm\n", "1:7", "expected a list"),
    "row is no mapping": ("rows:\n  - gemm\n", "2:5", "expected fields"),
    "row without examples": ("rows:\n  - {category: gemm, match: x}\n", "2:5", "missing: examples"),
    "no examples in the list": ("rows:\n  - {category: gemm, match: x, examples: []}\n", "2:42", "empty"),
    "unknown field": (ROW + ", matches: y}\n", "2:47", "unknown field 'matches'"),
    "duplicate key": ("rows: []\nrows: []\n", "2:1", "field rows stands twice"),
    "misspelt category": (
        "rows:\n  - {category: gem, match: x, examples: [x]}\n",
        "2:16",
        "unknown category 'gem'",
    ),
    "misspelt kind": (ROW + ", kind: memcopy}\n", "2:53", "unknown kind 'memcopy'"),
    "bad regex": ("rows:\n  - {category: gemm, match: '(x', examples: [x]}\n", "2:29", "unclosed group"),
    "look-ahead": ("rows:\n  - {category: gemm, match: '(?=x)', examples: [x]}\n", "2:29", "look-around"),
    "second regex bad": (
        "rows:\n  - category: gemm\n    match: [x, '[']\n    examples: [x]\n",
        "3:16",
        "unclosed",
    ),
    "number for a text": (
        "rows:\n  - {category: gemm, match: 1, examples: [x]}\n",
        "2:29",
        "expected a text",
    ),
    "alias to itself": ("rows: &a [*a]\n", "1:7", "expected fields"),
    "unknown group": (
        "categories:\n  - {name: a, group: gemms, doc: d, color: '#000000'}\nrows: []\n",
        "2:22",
        "group",
    ),
    "color without quotes": (
        "categories:\n  - {name: a, group: gemm, doc: d, color: red}\nrows: []\n",
        "2:43",
        "color",
    ),
    "defined twice": (
        "categories:\n  - {name: cast, group: copy, doc: d, color: '#000000'}\nrows: []\n",
        "2:12",
        "twice",
    ),
    "two documents": ("rows: []\n---\nrows: []\n", "2:1", "document"),
    "not closed": ("rows: [\n", "2:1", "stream end"),
    "tab": ("rows:\n\t- x\n", "2:1", "cannot start any token"),
    "control character": ("rows: []\n# \x07\n", "2:3", "control character"),
    "not UTF-8": (b"rows: []\n# \xff\n", "2:3", "not UTF-8"),
    "too deep": ("[" * 500, "1:1", "nested too deeply"),
    "junk": ("lorem ipsum } dolor: [ sit\n" * 10_000, "2:13", "expected"),
}


@pytest.mark.parametrize(("text", "place", "message"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_file_is_refused_with_its_place(tmp_path: Path, text: str | bytes, place: str, message: str) -> None:
    with pytest.raises(RuleError) as error:
        _load(tmp_path, text)
    assert f"mine.yaml:{place}" in error.value.message
    assert message in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rows:\n  - {category: atention, match: x, examples: [x]}\n", "Did you mean attention?"),
        (ROW + ", exmaples: [y]}\n", "Did you mean examples?"),
        ("rows:\n  - {category: zzz, match: x, examples: [x]}\n", "Known: cast, copy,"),
    ],
)
def test_the_nearest_known_name_is_given(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(RuleError, match=re.escape(hint)):
        _load(tmp_path, text)


def test_a_missing_file_is_a_rule_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"none\.yaml"):
        load_categories(tmp_path / "none.yaml")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with suppress(RuleError):  # anything else fails the test
        _load(tmp_path_factory.getbasetemp(), text.encode("utf-8", "replace"))


# --- real traces ---------------------------------------------------------------------------------------

INFERENCE = (
    "sglang/", "sglang-tp2/", "glm5/",
    "public/tracelens-sglang", "public/tracelens-vllm", "public/tracelens-b200-vllm", "public/tracelens-qwen",
)  # fmt: skip
KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "memcpy": "memcpy",
    "memset": "memset",
}


@cache
def _recorded() -> dict[str, dict[tuple[str, str], float]]:
    """µs by (name, kind), for each trace with GPU activity but the largest."""
    if not SHARED.is_dir():
        pytest.skip("the trace collection is not beside the checkout")
    traces: dict[str, dict[tuple[str, str], float]] = {}
    for path in sorted(SHARED.rglob("*.json*")):
        if "cases" not in path.parts and "pool-eager-stack" not in path.name and (times := _times(path)):
            traces[str(path.relative_to(SHARED))] = times
    return traces


def _times(path: Path) -> dict[tuple[str, str], float]:
    times: dict[tuple[str, str], float] = defaultdict(float)
    for event in _events(path):
        kind = KINDS.get(str(event.get("cat", "")).lower())
        if kind and event.get("ph") == "X":
            times[event["name"], kind] += float(event.get("dur", 0))
    return dict(times)


def _events(path: Path) -> list[dict]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        data = zstandard.ZstdDecompressor().stream_reader(BytesIO(data)).read()
    try:
        trace = orjson.loads(data)
    except orjson.JSONDecodeError:
        trace = json.loads(data)  # inf
    return trace if isinstance(trace, list) else trace["traceEvents"]


@pytest.mark.shared
def test_hardly_any_time_of_an_inference_trace_is_other() -> None:
    shares: dict[str, float] = {}
    for trace, times in _recorded().items():
        categories = BUILT_IN.classify([name for name, _ in times], [kind for _, kind in times])
        other = sum(us for us, category in zip(times.values(), categories, strict=True) if category == "other")
        shares[trace] = other / max(sum(times.values()), 1e-9)
    inference = {trace: share for trace, share in shares.items() if trace.startswith(INFERENCE)}
    assert len(inference) > 30
    assert {trace: share for trace, share in inference.items() if share > 0.001} == {}
    assert {trace: share for trace, share in shares.items() if share > 0.01} == {}


@pytest.mark.shared
def test_rows_and_copy_dtypes_agree_on_every_recorded_copy() -> None:
    names = sorted({name for times in _recorded().values() for name, kind in times if kind == "kernel"})
    copies = [(name, dtypes) for name in names if (dtypes := copy_dtypes(name))]
    categories = BUILT_IN.classify([name for name, _ in copies], ["kernel"] * len(copies))
    assert len(copies) > 40
    assert [
        (name, category)
        for (name, dtypes), category in zip(copies, categories, strict=True)
        if category != ("cast" if dtypes.is_cast else "copy")
    ] == []
