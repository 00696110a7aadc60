"""Which casts convert a whole KV pool: a verdict on each group of casts, with its confidence and what it rests on."""

import polars as pl

from traceql.analyses.cast_windows import LAYER_KEY, PLACE, STEP_KEY, totals, work_frac
from traceql.names import ITEM_BYTES

POOL_FRAC = 0.05
"""A cast that takes less of the steps' kernel time (communication left out) is no whole-pool cast."""
POOL_BYTES = 1 << 20
"""Nor is one that writes less than this."""
POOL_CASTS = 4
"""Nor one that comes less often in a step, where layers are not known."""
LIKELY = 0.8
"""Confidence that a pool holds the dtype that the same step writes to it."""
_SIZES = ["n_elements_min", "n_elements_max"]
_POOL_SRC = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8", "uint8")
_POOL_DST = ("bf16", "fp16")


def pool_verdicts(judged: pl.DataFrame, windows: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """One row per group: the verdict, and what a pool holds where that is not recorded.

    Args:
        judged: casts and copies with their group_id, and the stage of their step.
        windows: rank, device, step, stage, wall_ns and work_ns: what is counted over.
        layers: rank, device, step, pass, layer and type: the layers of these steps.

    Returns:
        group_id, rank, device, src_dtype, n_casts; is_whole_pool, whole_pool_confidence, whole_pool_reason; n_layers,
        in_every_layer; likely_src_dtype, likely_src_confidence. Null is unknown.
    """
    return _likely_sources(_known_elsewhere(_verdicts(judged, windows, layers), judged), judged)


def _of_its_stages(judged: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """group_id, n_steps and work_ns: of the steps of the stages that have the group."""
    key = [*PLACE, "stage"]
    stages = judged.select("group_id", *key).unique()
    both = stages.join(totals(windows, "stage"), on=key, validate="m:1", nulls_equal=True)
    return both.group_by("group_id").agg(pl.sum("n_steps", "work_ns"))


def _verdicts(judged: pl.DataFrame, windows: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """group_id, is_whole_pool with its confidence and reason, n_layers and in_every_layer."""
    facts = judged.group_by("group_id").agg(
        pl.first(*PLACE, "kind", "src_dtype", "dst_dtype", "n_elements_max", "size_evidence"),
        pool_src=_is_or_null("src_dtype", _POOL_SRC),
        pool_dst=_is_or_null("dst_dtype", _POOL_DST),
        n_casts=pl.len().cast(pl.Int64),
        written_bytes=(pl.col("n_elements_min") * item_bytes("dst_dtype")).first(),
        n_sizes=pl.struct(_SIZES).n_unique(),
        after_gather=pl.col("after_gather").fill_null(value=False).mean() >= 0.5,
        kernel_ns=pl.sum("dur_ns"),
    )
    facts = (
        facts.join(_of_its_stages(judged, windows), on="group_id", validate="1:1")
        .join(_by_step(judged), on="group_id", how="left", validate="1:1")
        .join(_every_layer(judged, layers), on="group_id", how="left", validate="1:1")
        .with_columns(work_frac=work_frac())
    )
    return facts.select(
        "group_id", *PLACE, "src_dtype", "n_casts", "n_layers", "in_every_layer",
        is_whole_pool=_first_that_holds(1), whole_pool_confidence=_first_that_holds(2),
        whole_pool_reason=_first_that_holds(3),
    )  # fmt: skip


def _is_or_null(dtype: str, among: tuple[str, ...]) -> pl.Expr:
    return (pl.col(dtype).is_in(among) | pl.col(dtype).is_null()).first()


def _by_step(judged: pl.DataFrame) -> pl.DataFrame:
    """group_id, n_layers, and of the steps that have the group: how many, and how many different counts."""
    is_layer = pl.col("layer").is_not_null()
    per_step = judged.group_by("group_id", "step").agg(n=pl.len(), n_layers=_n_layers(is_layer))
    return per_step.group_by("group_id").agg(
        n_layers=pl.when(pl.max("n_layers") > 0).then(pl.max("n_layers")),
        n_steps_with=pl.len().cast(pl.Int64),
        n_counts=pl.n_unique("n"),
        n_a_step=pl.max("n"),
    )


def _n_layers(is_layer: pl.Expr) -> pl.Expr:
    return pl.struct(LAYER_KEY).filter(is_layer).n_unique().cast(pl.Int64)


def _every_layer(judged: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """group_id and in_every_layer: whether, in each step that has it, each layer of the types that have it does."""
    inside = judged.drop_nulls("layer")
    having = inside.select("group_id", *STEP_KEY, *LAYER_KEY).unique().group_by("group_id").agg(n_having=pl.len())
    types = inside.select("group_id", *STEP_KEY, "layer_type").unique()
    of_type = layers.group_by(*STEP_KEY, "layer_type").agg(n=pl.len())
    expected = types.join(of_type, on=[*STEP_KEY, "layer_type"], validate="m:1", nulls_equal=True)
    expected = expected.group_by("group_id").agg(n_expected=pl.sum("n"))
    both = having.join(expected, on="group_id", validate="1:1")
    return both.select("group_id", in_every_layer=pl.col("n_having") == pl.col("n_expected"))


_SIZE_TEXT = pl.when(pl.col("size_evidence") == "grid").then(pl.lit("a grid of one size")).otherwise(pl.lit("one size"))
_LAYERS_TEXT = pl.coalesce(
    pl.format("in each of {} layers", "n_layers"), pl.format("{} times in each step", "n_a_step")
)
_VERDICTS: tuple[tuple[pl.Expr, bool | None, float | None, pl.Expr], ...] = (
    (pl.col("kind") != "cast", None, None, pl.lit(None, pl.String)),
    (~(pl.col("pool_src") & pl.col("pool_dst")), False, 0.95, pl.lit("not from an 8-bit to a 16-bit dtype")),
    (pl.col("n_elements_max").is_null() | pl.col("dst_dtype").is_null(), None, None, pl.lit("its size is not known")),
    (pl.col("after_gather"), False, 0.95, pl.lit("converts what the kernel before it gathered")),
    (pl.col("written_bytes") < POOL_BYTES, False, 0.95, pl.lit("small")),
    (pl.col("work_frac") < POOL_FRAC, False, 0.8, pl.format(
        "{} % of the kernel time without communication", (pl.col("work_frac") * 100).round(1))),
    (pl.col("n_steps") < 2, None, None, pl.lit("with one step it cannot be told whether its size ever changes")),
    (pl.col("n_sizes") > 1, False, 0.9, pl.lit("its size changes from step to step")),
    ((pl.col("n_counts") > 1) | (pl.col("n_steps_with") < pl.col("n_steps")), False, 0.8,
     pl.lit("not equally often in each step")),
    (~pl.col("in_every_layer"), False, 0.8, pl.lit("not in every layer")),
    (pl.coalesce("n_layers", "n_a_step") < pl.when(pl.col("n_layers").is_null()).then(POOL_CASTS).otherwise(2),
     False, 0.8, pl.lit("too rare for something that each layer does")),
    (pl.lit(True), True, None, pl.format(
        "{} {} and {} steps, {} % of the kernel time without communication, nothing gathered before it",
        _SIZE_TEXT, _LAYERS_TEXT, "n_steps", (pl.col("work_frac") * 100).round(0).cast(pl.Int64))),
)  # fmt: skip
"""(condition, is_whole_pool, confidence, reason): the first whose condition holds."""

_POOL_CONFIDENCE = (
    pl.when(pl.col("n_layers").is_null()).then(0.7).when(pl.col("size_evidence") == "grid").then(0.85).otherwise(0.9)
)


def _first_that_holds(field: int) -> pl.Expr:
    """One field of the first of `_VERDICTS` that holds."""
    chosen: list[pl.Expr] = []
    for number, verdict in enumerate(_VERDICTS):
        value = verdict[field]
        if isinstance(value, pl.Expr):
            found = value
        elif field == 2 and verdict[1]:
            found = _POOL_CONFIDENCE
        else:
            found = pl.lit(value, pl.Boolean if field == 1 else pl.Float64)
        earlier = [before[0].fill_null(value=False) for before in _VERDICTS[:number]]
        holds = verdict[0].fill_null(value=False)
        chosen.append(pl.when(holds & ~pl.any_horizontal(*earlier, pl.lit(value=False))).then(found))
    return pl.coalesce(chosen)


def _known_elsewhere(verdicts: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """What one step alone cannot tell, other stages do: a cast of the size of a pool that they cast whole is that pool.

    A prompt's eager pass beside decode steps under graphs, for example: it may name the dtype that they do not.
    """
    sizes = judged.group_by("group_id").agg(
        pl.first("kind", "dst_dtype"), pl.min("n_elements_min"), pl.max("n_elements_max")
    )
    sized = verdicts.join(sizes, on="group_id", validate="1:1")
    pools = sized.filter("is_whole_pool").select(
        *PLACE, "dst_dtype", *_SIZES, pool_src="src_dtype", confidence="whole_pool_confidence"
    )
    is_open = (pl.col("kind") == "cast") & pl.col("is_whole_pool").is_null()
    open_cases = sized.filter(is_open & pl.col("in_every_layer").fill_null(value=True))
    known = (
        open_cases.join(pools, on=[*PLACE, "dst_dtype"], suffix="_pool")
        .filter(
            pl.col("n_elements_min") <= pl.col("n_elements_max_pool"),
            pl.col("n_elements_max") >= pl.col("n_elements_min_pool"),
            (pl.col("src_dtype") == pl.col("pool_src")).fill_null(value=True),
        )
        .group_by("group_id")
        .agg(pl.max("confidence"), found=pl.lit(value=True))
    )
    same = pl.lit("of the size of the pool that steps of another stage cast whole")
    return verdicts.join(known, on="group_id", how="left", validate="1:1").with_columns(
        is_whole_pool=pl.coalesce("found", "is_whole_pool"),
        whole_pool_confidence=pl.coalesce("confidence", "whole_pool_confidence"),
        whole_pool_reason=pl.when("found").then(same).otherwise("whole_pool_reason"),
    )  # fmt: skip


def _likely_sources(verdicts: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """Adds likely_src_dtype: the one 8-bit dtype that the steps of the device cast to, at least as often."""
    writes = judged.filter((pl.col("kind") == "cast") & pl.col("dst_dtype").is_in(_POOL_SRC))
    written = writes.group_by(PLACE).agg(
        written=pl.when(pl.n_unique("dst_dtype") == 1).then(pl.first("dst_dtype")), n_writes=pl.len()
    )
    is_it = pl.col("is_whole_pool") & pl.col("src_dtype").is_null() & (pl.col("n_writes") >= pl.col("n_casts"))
    return (
        verdicts.join(written, on=PLACE, how="left", validate="m:1")
        .with_columns(likely_src_dtype=pl.when(is_it).then("written"))
        .with_columns(likely_src_confidence=pl.when(pl.col("likely_src_dtype").is_not_null()).then(LIKELY))
    )


def item_bytes(dtype: str) -> pl.Expr:
    """Bytes of an element of the dtype in a column."""
    return pl.col(dtype).replace_strict(ITEM_BYTES, default=None, return_dtype=pl.Int64)
