"""Patches of a server in memory: which there are, whether one fits a release, and how to start a server with them.

A patch is a folder here. Its `patch.yaml` says which functions of which releases it replaces, its code with what.
The code runs in the server's processes alone (it needs the server's torch), brought there by the folder `hook`.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import cast

import msgspec

from traceql.capture.hook.traceql_hook import VARIABLE, fit
from traceql.errors import InputError, nearest
from traceql.yaml_files import Node, Scalar, YamlReader

_FOLDER = Path(__file__).parent
_HOOK = _FOLDER.parent / "hook"


@dataclass(frozen=True)
class Option:
    """A setting of a patch."""

    name: str
    default: str
    values: tuple[str, ...]
    """What it may be: words, or `number` for a whole number above zero."""
    doc: str


@dataclass(frozen=True)
class Target:
    """A function that a patch replaces."""

    role: str | None
    """By which the patch's code knows it; None where it must be there and stays as it is."""
    module: str
    function: str
    """Its name in the module, behind its class's and a dot."""
    parameters: tuple[str, ...]
    """Which it must have, in whatever order."""
    contains: tuple[str, ...]
    """Expressions that must stand in it, written as `ast.unparse` writes them."""


@dataclass(frozen=True)
class Form:
    """How a patch is applied to some releases: what is replaced there, and what differs from other releases."""

    name: str
    settings: dict[str, Scalar]
    """For the patch's code."""
    server_args: dict[str, Scalar]
    """What the server's arguments must be; with others the patch leaves the server as it is, and reports so."""
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class Patch:
    """A patch, as `patch.yaml` describes it."""

    name: str
    doc: str
    releases: tuple[str, ...]
    """Of SGLang, whose sources it was tested with; another may fit as well."""
    environment: dict[str, str]
    """Variables that switch it on."""
    options: tuple[Option, ...]
    forms: tuple[Form, ...]
    path: Path
    """The folder of its code."""


class Report(msgspec.Struct, frozen=True):
    """One line of what a server's process said of a patch."""

    time_s: float
    """Seconds since 1970."""
    pid: int
    patch: str
    state: str
    """`applied` (functions replaced), `refused` (the process ended), or a word of the patch's own."""
    facts: dict[str, object] = {}
    """All that the line holds besides."""


@cache
def patches() -> tuple[Patch, ...]:
    """All patches, by name."""
    return tuple(sorted((_patch(path) for path in _FOLDER.glob("*/patch.yaml")), key=lambda patch: patch.name))


def check(names: Iterable[str], sglang_version: str, package_dir: Path) -> list[str]:
    """Why patches do not fit a release, one reason a patch; empty where they do.

    Args:
        names: of the patches.
        sglang_version: of the release; only told of.
        package_dir: the folder of the package `sglang`, whose sources are read and not run.

    Raises:
        InputError: there is no such patch.
    """
    found = [(patch, *fit.choose(_forms(patch), package_dir)) for patch in _named(names)]
    return [
        f"{patch.name} does not fit SGLang {sglang_version} (it was tested with {', '.join(patch.releases)}): "
        + "; ".join(reasons)
        for patch, form, reasons in found
        if form is None
    ]


def environment(names: Iterable[str], options: Mapping[str, Mapping[str, str]], folder: Path) -> dict[str, str]:
    """The variables with which a server starts patched, to be put over those it has anyhow.

    Args:
        names: of the patches; without any there is nothing to put.
        options: settings by the name of the patch, then of the option; what is not named has its default.
        folder: where the server's processes report to (`reports`), and patches write their files; it exists.

    Raises:
        InputError: no such patch or option, or a value that an option cannot have.
    """
    wanted = _named(names)
    if not wanted:
        return {}
    if strange := sorted(options.keys() - {patch.name for patch in wanted}):
        raise InputError(f"options for {', '.join(strange)}, which is not applied", "Name the patch too.")
    place = str(folder.resolve())
    data = [_plain(patch) | {"options": _settings(patch, options.get(patch.name, {}))} for patch in wanted]
    before = os.environ.get("PYTHONPATH")
    variables = {name: value for patch in wanted for name, value in patch.environment.items()}
    return variables | {
        "PYTHONPATH": os.pathsep.join([str(_HOOK), *([before] if before else [])]),
        VARIABLE: json.dumps({"folder": place, "patches": [patch | {"folder": place} for patch in data]}),
    }


def reports(folder: Path) -> list[Report]:
    """What the server's processes have said so far, by time. A line that is still being written is left out."""
    lines = [line for path in sorted(folder.glob("patches-*.jsonl")) for line in path.read_bytes().splitlines(True)]
    found = [msgspec.json.decode(line, type=dict[str, object]) for line in lines if line.endswith(b"\n")]
    return sorted((_report(line) for line in found), key=lambda report: report.time_s)


def problems(said: Iterable[Report]) -> list[str]:
    """What patches could not do that are applied, one sentence each, in the order of the reports.

    A patch may leave a server as it is (`off`), fail at what it does beside serving (`failed`), or have batches that
    it leaves as they are (`fallback`): of those the sentence has the largest number that a process reported.
    """
    counts: dict[str, int] = {}
    for report in said:
        if report.state in _PROBLEMS:
            text = f"{report.patch} {_PROBLEMS[report.state]}: {report.facts.get('reason')}"
            n_batches = report.facts.get("n_batches")
            counts[text] = max(counts.get(text, 0), n_batches if isinstance(n_batches, int) else 0)
    return [f"{text} (at least {n:,} in a process)" if n else text for text, n in counts.items()]


_PROBLEMS = {
    "off": "leaves the server as it is",
    "failed": "failed",
    "fallback": "left batches as they were",
}


def _report(line: dict[str, object]) -> Report:
    known = {name: line.pop(name, None) for name in ("time_s", "pid", "patch", "state")}
    return msgspec.convert({**known, "facts": line}, type=Report)


def _named(names: Iterable[str]) -> list[Patch]:
    known = {patch.name: patch for patch in patches()}
    for name in (wanted := list(dict.fromkeys(names))):
        if name not in known:
            raise InputError(f"unknown patch {name[:80]!r}", nearest(name, known))
    return [known[name] for name in wanted]


def _settings(patch: Patch, given: Mapping[str, str]) -> dict[str, str]:
    known = {option.name: option for option in patch.options}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{patch.name} has no option {name[:80]!r}", nearest(name, known))
        is_number = "number" in known[name].values and value.isascii() and value.isdigit() and int(value) > 0
        if not is_number and (value == "number" or value not in known[name].values):
            words = ", ".join(known[name].values)
            raise InputError(f"{patch.name}: {name} cannot be {value[:80]!r}", f"It can be: {words}.")
    return {name: given.get(name, option.default) for name, option in known.items()}


def _plain(patch: Patch) -> dict[str, object]:
    """A patch as the hook reads it."""
    return {"name": patch.name, "path": str(patch.path), "forms": _forms(patch)}


def _forms(patch: Patch) -> list[fit.Form]:
    return [asdict(form) for form in patch.forms]


def _patch(path: Path) -> Patch:
    reader = YamlReader(path)
    root = reader.document(expected="It must describe a patch.")
    fields = reader.mapping(root, required={"name", "doc", "releases", "forms"}, optional={"options", "environment"})
    return Patch(
        name=reader.text(fields["name"]),
        doc=reader.text(fields["doc"]).strip(),
        releases=_texts(reader, fields["releases"]),
        environment={name: str(value) for name, value in _scalars(reader, fields.get("environment")).items()},
        options=tuple(_option(reader, node) for node in reader.items(fields["options"])) if "options" in fields else (),
        forms=tuple(_form(reader, node) for node in reader.items(fields["forms"])),
        path=path.parent,
    )


def _option(reader: YamlReader, node: Node) -> Option:
    fields = reader.mapping(node, required={"name", "default", "values", "doc"})
    texts = {name: reader.text(fields[name]) for name in ("name", "default", "doc")}
    return Option(values=_texts(reader, fields["values"]), **texts)


def _form(reader: YamlReader, node: Node) -> Form:
    fields = reader.mapping(node, required={"name", "targets"}, optional={"settings", "server_args"})
    return Form(
        name=reader.text(fields["name"]),
        settings=_scalars(reader, fields.get("settings")),
        server_args=_scalars(reader, fields.get("server_args")),
        targets=tuple(_target(reader, target) for target in reader.items(fields["targets"])),
    )


def _target(reader: YamlReader, node: Node) -> Target:
    fields = reader.mapping(node, required={"module", "function"}, optional={"role", "parameters", "contains"})
    return Target(
        role=reader.text(fields["role"]) if "role" in fields else None,
        module=reader.text(fields["module"]),
        function=reader.text(fields["function"]),
        parameters=_texts(reader, fields.get("parameters")),
        contains=_texts(reader, fields.get("contains")),
    )


def _texts(reader: YamlReader, node: Node | None) -> tuple[str, ...]:
    return tuple(reader.text(item) for item in reader.items(node)) if node else ()


def _scalars(reader: YamlReader, node: Node | None) -> dict[str, Scalar]:
    """Names of any kind and their plain values."""
    if node is None:
        return {}
    if node.id != "mapping":
        reader.fail(node, "expected names and values", "Write `name: value`.")
    pairs = cast("list[tuple[Node, Node]]", node.value)
    return {reader.text(name): reader.scalar(value) for name, value in pairs}
