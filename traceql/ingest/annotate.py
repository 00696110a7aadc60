"""What a kernel's name, and the op that launched it, say: short name, category, dtypes."""

import polars as pl

from traceql.categories import Categories
from traceql.names import copy_dtypes, short_name
from traceql.tables import KERNELS

_COPIES = ("cast", "copy")


def annotate_kernels(kernels: pl.LazyFrame, categories: Categories) -> pl.LazyFrame:
    """The `kernels` table, whole.

    Args:
        kernels: the table as read, without short_name, category and group; dtypes and sizes as copy ops record them.
        categories: classify the names.

    A cast and a copy are told apart by the dtypes of the launching op; where it is not recorded, by the name.
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
        .with_columns(
            category=pl.when(is_copy & by_op).then(converts).otherwise("name_category"),
            evidence=pl.when(has_dtypes & by_op)
            .then(pl.lit("op_args"))
            .when(is_copy & pl.col("name_dst").is_not_null())
            .then(pl.lit("kernel_name")),
            src_dtype=pl.when(has_dtypes & by_op).then("src_dtype").when(is_copy).then("name_src"),
            dst_dtype=pl.when(has_dtypes & by_op).then("dst_dtype").when(is_copy).then("name_dst"),
            n_elements_min=pl.when(has_dtypes).then("n_elements_min"),
            n_elements_max=pl.when(has_dtypes).then("n_elements_max"),
        )
        .with_columns(group=pl.col("category").replace_strict(groups, return_dtype=pl.String))
        .select(KERNELS.names)
    )


def _name_facts(names: pl.DataFrame, categories: Categories) -> pl.DataFrame:
    """One row per (name, kind): short_name, name_category, and the dtypes that the name of a copy kernel tells."""
    texts = names["name"].to_list()
    dtypes = [copy_dtypes(text) for text in texts]
    return names.with_columns(
        pl.Series("short_name", [short_name(text) for text in texts], pl.String),
        pl.Series("name_category", categories.classify(texts, names["kind"].to_list()), pl.String),
        pl.Series("name_src", [d.src if d else None for d in dtypes], pl.String),
        pl.Series("name_dst", [d.dst if d else None for d in dtypes], pl.String),
    )
