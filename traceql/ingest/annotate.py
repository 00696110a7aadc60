"""What a kernel's name, its launch grid and the op that launched it say: short name, category, dtypes, size."""

import polars as pl

from traceql.categories import Categories
from traceql.names import ITEM_BYTES, block_work, copy_dtypes, short_name
from traceql.tables import KERNELS

_COPIES = ("cast", "copy")
_GRID_LIMITS = {"grid_x": 2**31 - 1, "grid_y": 65535, "grid_z": 65535}
_MOST_BLOCKS = 1 << 40
"""What no launch exceeds: the figures of a damaged file must not overflow."""


def annotate_kernels(kernels: pl.LazyFrame, categories: Categories) -> pl.LazyFrame:
    """The `kernels` table, whole.

    Args:
        kernels: the table as read, without short_name, category and group; dtypes and sizes as copy ops record them.
        categories: classify the names.

    A cast and a copy are told apart by the dtypes of the launching op; where it is not recorded, by the name. Their
    size is the op's where the grid allows it: a tensor split over several launches has the grid's range in each.
    """
    facts = _name_facts(kernels.select("name", "kind").unique().collect(), categories)
    key = ["name", "kind"]
    if facts["name"].is_unique().all():  # as ever, but for names made to deceive; one key joins much faster
        key, facts = ["name"], facts.drop("kind")
    by_op = pl.col("src_dtype").is_not_null() & pl.col("dst_dtype").is_not_null()
    is_copy = pl.col("name_category").is_in(_COPIES)
    converts = pl.when(pl.col("src_dtype") != pl.col("dst_dtype")).then(pl.lit("cast")).otherwise(pl.lit("copy"))
    has_dtypes = is_copy | (pl.col("kind") == "memcpy")
    groups = {category.name: category.group for category in categories.categories}
    return (
        kernels.join(facts.lazy(), on=key, how="left", validate="m:1", maintain_order="left")
        .with_columns(*_grid_range())
        .with_columns(
            category=pl.when(is_copy & by_op).then(converts).otherwise("name_category"),
            evidence=pl.when(has_dtypes & by_op)
            .then(pl.lit("op_args"))
            .when(is_copy & pl.col("name_dst").is_not_null())
            .then(pl.lit("kernel_name"))
            .when(is_copy & pl.col("grid_max").is_not_null())
            .then(pl.lit("grid")),
            src_dtype=pl.when(has_dtypes & by_op).then("src_dtype").when(is_copy).then("name_src"),
            dst_dtype=pl.when(has_dtypes & by_op).then("dst_dtype").when(is_copy).then("name_dst"),
            **{name: _size(name, is_copy, has_dtypes) for name in ("n_elements_min", "n_elements_max")},
        )
        .with_columns(group=pl.col("category").replace_strict(groups, return_dtype=pl.String))
        .select(KERNELS.names)
    )


def _grid_range() -> tuple[pl.Expr, pl.Expr]:
    """Least and greatest number of elements that a launch grid of whole blocks but for the last can mean."""
    sane = pl.all_horizontal(pl.col(axis).is_between(1, most) for axis, most in _GRID_LIMITS.items())
    n_blocks = pl.when(sane).then(pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z"))
    n_threads = pl.col("block_x") * pl.col("block_y").fill_null(1) * pl.col("block_z").fill_null(1)
    holds = (n_threads == pl.col("block_threads")) & (n_blocks <= _MOST_BLOCKS)
    least, most = (n_blocks - 1) * pl.col("block_least") + 1, n_blocks * pl.col("block_most")
    return pl.when(holds).then(least).alias("grid_min"), pl.when(holds).then(most).alias("grid_max")


def _size(name: str, is_copy: pl.Expr, has_dtypes: pl.Expr) -> pl.Expr:
    """n_elements_min or n_elements_max: the op's, else the grid's, else the bytes' where the dtype is known."""
    of_op = pl.col("n_elements_max")
    fits = of_op.is_between("grid_min", "grid_max") | pl.col("grid_max").is_null()
    return pl.coalesce(
        pl.when(has_dtypes & fits).then(name),
        pl.when(is_copy).then(f"grid_{name[-3:]}"),
        pl.when((pl.col("kind") == "memcpy") & (pl.col("src_dtype") == pl.col("dst_dtype"))).then(
            pl.col("bytes") // pl.col("dst_dtype").replace_strict(ITEM_BYTES, default=None, return_dtype=pl.Int64)
        ),
    )


def _name_facts(names: pl.DataFrame, categories: Categories) -> pl.DataFrame:
    """One row per (name, kind): short_name, name_category, and what the name of a copy kernel tells.

    That is the dtypes, and the work of a block: block_threads, block_least, block_most.
    """
    texts = names["name"].to_list()
    dtypes = [copy_dtypes(text) for text in texts]
    works = [block_work(text) for text in texts]
    return names.with_columns(
        pl.Series("short_name", [short_name(text) for text in texts], pl.String),
        pl.Series("name_category", categories.classify(texts, names["kind"].to_list()), pl.String),
        pl.Series("name_src", [d.src if d else None for d in dtypes], pl.String),
        pl.Series("name_dst", [d.dst if d else None for d in dtypes], pl.String),
        pl.Series("block_threads", [w.n_threads if w else None for w in works], pl.Int64),
        pl.Series("block_least", [w.least if w else None for w in works], pl.Int64),
        pl.Series("block_most", [w.most if w else None for w in works], pl.Int64),
    )
