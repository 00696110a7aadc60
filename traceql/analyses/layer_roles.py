"""What each kernel's name says about where layers begin and end: its roles (rules/layer_kernels.yaml)."""

import re
from functools import cache

import msgspec
import numpy as np
import polars as pl

from traceql.arrays import Bools, Ints
from traceql.categories import MAX_MATCHED
from traceql.memo import remembered
from traceql.resources import resource

_NAMED = ("attention", "sparse_indexer", "linear_attention", "other")
"""Categories of which one layer type has several kernels, told apart by name; of the rest the category is enough."""


class _Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of rules/layer_kernels.yaml."""

    role: str
    categories: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    not_: tuple[str, ...] = msgspec.field(name="not", default=())


class _Roles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    roles: tuple[_Role, ...]


class Vocabulary:
    """The different kernels of a trace: their tokens and roles, as arrays over the kernels' numbers.

    A token is what two kernels must share to count as the same step of a layer: the category, for attention and what
    has no category also the name without template arguments. So neither GEMM tiles nor dtypes tell layers apart.
    """

    def __init__(self, kernels: pl.DataFrame) -> None:
        """From name, short_name and category of the kernels; `numbers` has one entry for each of its rows."""
        named = kernels.select("name", "short_name", "category")
        self._kinds = named.unique(maintain_order=True).with_row_index("number")
        self.numbers: Ints = (
            named.join(
                self._kinds, on=named.columns, how="left", validate="m:1", maintain_order="left", nulls_equal=True
            )["number"]
            .cast(pl.Int64)
            .to_numpy()
        )
        token = pl.when(pl.col("category").is_in(_NAMED)).then(
            pl.col("category") + ":" + pl.col("short_name").str.split("<").list.first()
        ).otherwise("category")  # fmt: skip
        self.tokens: Ints = self._kinds.select(token.rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
        self._roles: dict[str, Bools] = {}

    def has(self, role: str) -> Bools:
        """Whether each different kernel has a role."""
        if role not in self._roles:
            self._roles[role] = self._found(_roles()[role])
        return self._roles[role]

    @property
    def categories(self) -> list[str]:
        """Of each different kernel."""
        return self._kinds["category"].to_list()

    @property
    def names(self) -> list[str]:
        """Of each different kernel."""
        return self._kinds["name"].to_list()

    def _found(self, row: _Role) -> Bools:
        wanted = [re.compile(pattern) for pattern in row.match]
        refused = [re.compile(pattern) for pattern in row.not_]

        def holds(name: str, category: str) -> bool:
            name = name[:MAX_MATCHED]
            found = category in row.categories or any(pattern.search(name) for pattern in wanted)
            return found and not any(pattern.search(name) for pattern in refused)

        return np.array([holds(*kind) for kind in zip(self.names, self.categories, strict=True)], bool)


@cache
def _roles() -> dict[str, _Role]:
    path = resource("rules", "layer_kernels.yaml")

    def parsed() -> _Roles:
        from ruamel.yaml import YAML  # noqa: PLC0415 - takes longer than reading what is remembered

        loaded = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
        return msgspec.convert(loaded, _Roles)

    return {row.role: row for row in remembered(path, _Roles, parsed).roles}
