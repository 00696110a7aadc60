"""Decimal microseconds to whole nanoseconds, against Python's own decimals."""

from decimal import ROUND_HALF_EVEN, Decimal

from hypothesis import given
from hypothesis import strategies as st

from traceql.ingest.times import MISSING, parse_us

digits = st.integers(0, 9_000_000_000_000_000)
fraction = st.one_of(
    st.just(""), st.integers(0, 6).flatmap(lambda n: st.from_regex(rf"\.[0-9]{{{n + 1}}}", fullmatch=True))
)
numbers = st.builds(
    lambda sign, whole, rest: f"{sign}{whole}{rest}", st.sampled_from(["", "", "", "-"]), digits, fraction
)


def exact(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@given(st.lists(numbers, min_size=1, max_size=20))
def test_any_decimals(texts):
    assert parse_us([t.encode() for t in texts]).tolist() == [exact(t) for t in texts]


@given(st.lists(st.builds(lambda w, f: f"{w}.{f:03d}", digits, st.integers(0, 999)), min_size=1))
def test_the_layout_of_kineto(texts):
    assert parse_us([t.encode() for t in texts]).tolist() == [exact(t) for t in texts]


def test_a_double_would_be_off():
    assert parse_us([b"1712195495990416.814"]).tolist() == [1712195495990416814]


def test_strings_exponents_and_what_is_no_number():
    texts = [
        b'"1751328000123456.789"',
        b"1.5e3",
        b"null",
        b"",
        b"true",
        b'""',
        b"1e400",
        b'"nan"',
        b"-0.0005",
    ]
    expected = [1751328000123456789, 1_500_000, MISSING, MISSING, MISSING, MISSING, MISSING, MISSING, 0]
    assert parse_us(texts).tolist() == expected


def test_beyond_64_bits_is_unknown():
    assert parse_us([b"9223372036854776.000", b"9223372036854775.807"]).tolist() == [MISSING, 2**63 - 1]


def test_nothing():
    assert parse_us([]).tolist() == []
