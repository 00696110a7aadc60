"""Types of layers: which layers run like kernels, so that they can be compared and added up."""

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from traceql.analyses.layer_roles import Vocabulary
from traceql.analyses.layer_tables import LAYER_TYPES

ALIKE = 0.75
"""Common kernels over all kernels of two layers: from here on they may be of one type."""
_VERY_ALIKE = 0.85
"""Likeness to a large group from which a group of few layers is none of its own."""
_FEW = 0.03
"""Share of all layers below which a group is of few."""
_MOST_VARIANTS = 4
"""Variants of an attention kernel that may tell types; more are a choice of the library."""
_STRUCTURE = ("moe_gemm", "moe_routing", "attention", "linear_attention", "sparse_indexer")
"""A layer that has kernels of one of these is of another type than one that has none."""
LAYER = ["rank", "device", "step", "model_pass", "layer"]

Bag = Mapping[int, int]
"""How many kernels of each token."""


def layer_types(inside: pl.DataFrame, labels: pl.DataFrame | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Which type each layer is of (columns of `LAYER`, layer_type), and table `layer_types`.

    Args:
        inside: the activities in layers, with name, short_name, category and block.
        labels: label of each layer (columns of `LAYER`, label) where it was recorded; or None.

    Two layers are of one type if they have the same structure (experts, kinds of attention) and three quarters of their
    kernels, by token, in common. Variants of an attention kernel that differ in nothing but template arguments make
    types (sliding window and full attention) if each of at most four is in several layers of a step.
    """
    if not inside.height:
        empty = inside.select(LAYER).with_columns(layer_type=pl.lit(0, pl.Int64))
        return empty, LAYER_TYPES.empty()
    signed = _signed(inside)
    types = _clustered(signed)
    typed = signed.join(types, on="signature", validate="m:1").sort(LAYER)
    first = typed.unique("group", keep="first", maintain_order=True)
    numbers = first.select("group", layer_type=pl.int_range(pl.len(), dtype=pl.Int64))
    typed = typed.join(numbers, on="group", validate="m:1").sort(LAYER).select(*LAYER, "layer_type")
    return typed, LAYER_TYPES.check(_described(inside, typed, labels))


def _signed(inside: pl.DataFrame) -> pl.DataFrame:
    """One row per layer: its tokens with their numbers as text, and the names of its attention kernels."""
    vocabulary = Vocabulary(inside)
    token = pl.Series("token", vocabulary.tokens[vocabulary.numbers])
    counted = inside.with_columns(token).group_by(*LAYER, "token").agg(n=pl.len())
    pair = pl.concat_str("token", "n", separator=":")
    bags = counted.sort(*LAYER, "token").group_by(LAYER).agg(bag=pair.str.join(" "))
    is_attention = pl.col("category") == "attention"
    structure = pl.col("category").filter(pl.col("category").is_in(_STRUCTURE)).unique().sort().str.join(" ")
    named = inside.group_by(LAYER).agg(
        structure=structure, variant=pl.col("name").filter(is_attention).unique().sort().str.join("\n")
    )
    rows = bags.join(named, on=LAYER, validate="1:1")
    rows = rows.with_columns(variant=_kept_variants(rows))
    return rows.with_columns(signature=pl.concat_str("bag", "structure", "variant", separator="|")).sort(LAYER)


def _kept_variants(rows: pl.DataFrame) -> pl.Series:
    """The attention variant of each layer where variants mean something, else nothing."""
    per_step = rows.group_by("structure", "variant", *LAYER[:3]).agg(n=pl.len())
    variants = per_step.group_by("structure", "variant").agg(pl.median("n"))
    telling = variants.group_by("structure").agg(
        is_telling=(pl.len() <= _MOST_VARIANTS) & (pl.min("n") > 1)  # a single layer proves no type
    )
    told = rows.join(telling, on="structure", validate="m:1", maintain_order="left")
    return told.select(pl.when("is_telling").then("variant").otherwise(pl.lit("")))["variant"]


def _clustered(signed: pl.DataFrame) -> pl.DataFrame:
    """The group of each signature: that of the commonest like it, commonest first."""
    kinds = signed.group_by("signature", "bag", "structure", "variant").agg(n=pl.len())
    kinds = kinds.sort("n", "signature", descending=[True, False])
    leaders: list[tuple[str, str, Bag]] = []
    sizes: Counter[int] = Counter()
    groups: list[int] = []
    for _, text, structure, variant, n in kinds.rows():
        bag = _bag(text)
        group = _nearest(bag, structure, variant, leaders)
        if group is None:
            group = len(leaders)
            leaders.append((structure, variant, bag))
        sizes[group] += n
        groups.append(group)
    merged = _without_strays(leaders, sizes)
    return kinds.select("signature", group=pl.Series([merged[group] for group in groups], dtype=pl.Int64))


def _nearest(bag: Bag, structure: str, variant: str, leaders: Sequence[tuple[str, str, Bag]]) -> int | None:
    alike = [
        (likeness(bag, other), -number)
        for number, (of_structure, of_variant, other) in enumerate(leaders)
        if (of_structure, of_variant) == (structure, variant)
    ]
    best = max(alike, default=(0.0, 0))
    return -best[1] if best[0] >= ALIKE else None


def _without_strays(leaders: Sequence[tuple[str, str, Bag]], sizes: Counter[int]) -> dict[int, int]:
    """Groups of very few layers that are very like a large one (a kernel lost or renamed) belong to it."""
    total = sizes.total()
    large = [group for group in sizes if sizes[group] >= _FEW * total]
    merged = {group: group for group in sizes}
    for group in sizes:
        if group in large:
            continue
        alike = [(likeness(leaders[group][2], leaders[other][2]), -other) for other in large]
        best = max(alike, default=(0.0, 0))
        if best[0] >= _VERY_ALIKE:
            merged[group] = -best[1]
    return merged


def likeness(one: Bag, other: Bag) -> float:
    """Twice the common kernels of two layers over the kernels of both: 1 for the same, 0 for nothing in common."""
    common = sum(min(n, other.get(token, 0)) for token, n in one.items())
    return 2 * common / (sum(one.values()) + sum(other.values()))


def _bag(text: str) -> Bag:
    return {int(token): int(n) for token, n in (pair.split(":") for pair in text.split())}


def _described(inside: pl.DataFrame, typed: pl.DataFrame, labels: pl.DataFrame | None) -> pl.DataFrame:
    """Label, layers a step and kernels a layer of each type."""
    sized = inside.group_by(LAYER).agg(n_kernels=pl.len()).join(typed, on=LAYER, validate="1:1")
    per_step = sized.group_by("layer_type", *LAYER[:3]).agg(n_layers=pl.len())
    counts = per_step.group_by("layer_type").agg(pl.col("n_layers").median().round().cast(pl.Int64))
    sizes = sized.group_by("layer_type").agg(pl.col("n_kernels").median().round().cast(pl.Int64))
    rows = counts.join(sizes, on="layer_type", validate="1:1").join(
        _blocks(inside, typed), on="layer_type", validate="1:1"
    )
    if labels is not None and labels.height:
        named = (
            typed.join(labels, on=LAYER, validate="1:1")
            .group_by("layer_type")
            .agg(pl.col("label").mode().sort().first())
        )
        rows = rows.join(named, on="layer_type", how="left", validate="1:1").with_columns(
            label=pl.when(pl.col("label").is_not_null())
            .then(pl.col("label") + ": " + pl.col("blocks"))
            .otherwise("blocks")
        )
    else:
        rows = rows.rename({"blocks": "label"})
    return rows.sort("layer_type").with_columns(label=_told_apart()).select(LAYER_TYPES.names)


def _told_apart() -> pl.Expr:
    """The labels, numbered where several types have the same: what they differ in has no short name."""
    n_same, number = pl.len().over("label"), pl.int_range(1, pl.len() + 1).over("label")
    return pl.when(n_same > 1).then(pl.format("{}, kind {}", "label", number)).otherwise("label")


def _blocks(inside: pl.DataFrame, typed: pl.DataFrame) -> pl.DataFrame:
    """The blocks that most layers of a type have, in order: `attention + moe`."""
    order = pl.Enum(["attention", "mlp", "moe", "other"])
    has = inside.filter(pl.col("block") != "comm").select(*LAYER, pl.col("block").cast(order)).unique()
    per_type = has.join(typed, on=LAYER, validate="m:1").group_by("layer_type", "block").agg(n=pl.len())
    sizes = typed.group_by("layer_type").agg(total=pl.len())
    common = per_type.join(sizes, on="layer_type", validate="m:1").filter(pl.col("n") * 2 > pl.col("total"))
    joined = (
        common.sort("layer_type", "block")
        .group_by("layer_type")
        .agg(blocks=pl.col("block").cast(pl.String).str.join(" + "))
    )
    return (
        sizes.select("layer_type")
        .join(joined, on="layer_type", how="left", validate="1:1")
        .with_columns(pl.col("blocks").fill_null("other"))
    )
