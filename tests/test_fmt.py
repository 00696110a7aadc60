import pytest

from traceql import fmt


@pytest.mark.parametrize(
    ("column", "number", "text"),
    [
        ("wall_ns", 84_025_000, "84.025 ms"),
        ("ns_per_step", 66_700_123.4, "66.700 ms"),
        ("dur_ns", 0, "0 ns"),
        ("dur_ns", 950, "950 ns"),
        ("dur_ns", 12_345, "12.3 µs"),
        ("dur_ns", 999_949, "999.9 µs"),
        ("dur_ns", 999_950, "1.000 ms"),
        ("span_ns", 2_450_123_000, "2,450.123 ms"),
        ("span_ns", 12_500_000_000, "12.500 s"),
        ("delta_ns", -1_500_000, "-1.500 ms"),
        ("bytes", 512, "512 B"),
        ("moved_bytes", 855_360_000, "855 MB"),
        ("size_bytes", 999_600, "1.00 MB"),
        ("achieved_bytes_per_s", 3.35e12, "3.35 TB/s"),
        ("tokens_per_s", 10.52, "10.5 tokens/s"),
        ("share", 0.794, "79.4 %"),
        ("share", 0, "0.0 %"),
        ("idle_frac", 0.0004, "<0.1 %"),
        ("n_kernels", 2_337_000, "2,337,000"),
        ("n_kernels", 2362.5, "2,362.5"),
        ("n_kernels", 2362.0, "2,362"),
        ("is_complete", True, "yes"),
        ("label", "step[DECODE bs=8]", "step[DECODE bs=8]"),
    ],
)
def test_the_suffix_of_a_column_picks_the_form(column: str, number: float | str, text: str) -> None:
    assert fmt.value(column, number) == text


@pytest.mark.parametrize("column", ["wall_ns", "share", "bytes", "n_kernels", "tokens_per_s", "label"])
@pytest.mark.parametrize("unknown", [None, float("nan"), float("inf"), float("-inf")])
def test_unknown_is_never_zero(column: str, unknown: float | None) -> None:
    assert fmt.value(column, unknown) == "—"


@pytest.mark.parametrize("form", [fmt.ms, fmt.us, fmt.duration, fmt.percent, fmt.count, fmt.size])
def test_unknown_in_a_column_with_its_unit_in_the_title(form: fmt.Formatter) -> None:
    assert form(float("nan")) == "—"


def test_columns_with_the_unit_in_their_title_have_bare_numbers() -> None:
    assert (fmt.ms(1_234_567_890), fmt.us(1_234_567)) == ("1,234.568", "1,234.6")


def test_control_characters_and_escapes_are_spelled_out() -> None:
    assert fmt.visible("a\x1b[31mred\nb\x07") == r"a\x1b[31mred\nb\x07"
    assert fmt.visible("\u202egnp.exe\ud800") == r"\u202egnp.exe\ud800"
    assert fmt.visible("ünïcode µ 名前") == "ünïcode µ 名前"


def test_a_part_has_the_unit_of_the_whole_or_each_its_own_where_it_is_short() -> None:
    assert fmt.part_of(64_600_000, 93_200_000) == "64.6 of 93.2 ms"
    assert fmt.part_of(1_200_000, 9_320_000) == "1.20 of 9.32 ms"
    assert fmt.part_of(950, 500_000) == "950 ns of 500.0 µs"


def test_a_percentage_in_a_sentence_has_no_more_digits_than_it_needs() -> None:
    assert [fmt.rounded_percent(share) for share in (0.785, 0.0995, 0.0994, 0.0001, None)] == [
        "78 %", "10 %", "9.9 %", "<0.1 %", "—",
    ]  # fmt: skip


def test_plurals() -> None:
    assert fmt.plural(1, "step") == "1 step"
    assert fmt.plural(1200, "step") == "1,200 steps"
    assert fmt.plural(2, "batch", "batches") == "2 batches"
