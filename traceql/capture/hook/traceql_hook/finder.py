"""Replaces functions in modules right after they are imported: all of a patch or the process does not start."""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .report import Reporter

Form = dict[str, Any]
"""As in `fit`, and so is Target."""
Target = dict[str, Any]

REFUSED_STATUS = 78
"""With which a process ends that cannot have its patches; EX_CONFIG of sysexits.h."""

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From the function that stands in the release to the one that takes its place."""


class Context:
    """What a patch is told: its options, the settings of the form that fits, and where to report to.

    Attributes:
        options: by name, as texts.
        settings: what the release needs, by name.
        server_args: what the server's arguments must be for the patch to be used, by name.
        folder: where the patch may write files.
    """

    def __init__(self, patch: dict[str, Any], form: Form, report: Reporter) -> None:
        self.options: dict[str, str] = patch["options"]
        self.settings: dict[str, Any] = form["settings"]
        self.server_args: dict[str, Any] = form["server_args"]
        self.folder: str = patch["folder"]
        self.report = functools.partial(report, patch["name"])


class Patch:
    """One patch in this process: which functions it replaces, and by what.

    Args:
        data: its `name`, `path` (of its code), `options`, `folder` and `forms`.
        report: told what is applied and what is refused.
    """

    def __init__(self, data: dict[str, Any], report: Reporter) -> None:
        self._data = data
        self._report = report
        self._form: Form = {}  # until `check` has found one

    @property
    def modules(self) -> set[str]:
        """The modules in which something may be replaced."""
        return {target["module"] for form in self._data["forms"] for target in form["targets"] if target["role"]}

    def check(self, package: Path) -> None:
        """Finds all targets in the sources; ends the process where one is missing."""
        from .fit import choose  # noqa: PLC0415 - slow to import, and most processes import nothing that is patched

        form, reasons = choose(self._data["forms"], package)
        if form is None:
            self._refuse(reasons)
        self._form = form

    def apply(self, module: ModuleType) -> None:
        """Replaces the targets that are in a module: all of them or, ending the process, none."""
        targets = [target for target in self._form["targets"] if target["module"] == module.__name__ and target["role"]]
        if not targets:
            return
        try:
            found = [(*_holder(module, target), self._wraps[target["role"]]) for target in targets]
            replaced = [(holder, name, functools.wraps(old)(wrap(old))) for holder, name, old, wrap in found]
        except Exception as error:  # whatever it is, the process must not run half patched
            self._refuse([f"{module.__name__}: {type(error).__name__}: {error}"])
        for holder, name, new in replaced:
            setattr(holder, name, new)
        functions = [f"{target['module']}.{target['function']}" for target in targets]
        self._report(self._data["name"], "applied", form=self._form["name"], functions=functions)

    @functools.cached_property
    def _wraps(self) -> dict[str, Wrap]:
        """The patch's own code, by role; loaded once the first module that it changes is there."""
        name = "traceql_patch_" + self._data["name"].replace("-", "_")
        folder = self._data["path"]
        spec = importlib.util.spec_from_file_location(
            name, str(Path(folder) / "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} holds no code")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module.wraps(Context(self._data, self._form, self._report))

    def _refuse(self, reasons: list[str]) -> NoReturn:
        name = self._data["name"]
        self._report(name, "refused", reasons=reasons)
        sys.stderr.write(f"traceql: the patch {name} does not fit, so this process ends: {'; '.join(reasons)}\n")
        sys.stderr.flush()
        os._exit(REFUSED_STATUS)  # an exception could be caught on its way, and the server run without the patch


class PatchFinder:
    """Stands first among the finders: has the others find a module, and its patches applied once it is executed.

    Without the base class of finders, whose module takes longer to import than all of this folder: every process that
    a server starts waits for it.
    """

    def __init__(self, patches: list[dict[str, Any]], report: Reporter) -> None:
        self._patches = [Patch(data, report) for data in patches]
        self._modules = {module for patch in self._patches for module in patch.modules}
        self._is_checked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that another finder has for a module to be patched, or None."""
        if fullname not in self._modules:
            return None
        spec = self._spec_of_others(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        self._check(fullname)
        spec.loader.exec_module = functools.partial(self._execute, spec.loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        for patch in self._patches:
            patch.apply(module)

    def _check(self, module: str) -> None:
        """Once, before anything is replaced: are all targets of all patches there?"""
        if not self._is_checked:
            package = sys.modules[module.partition(".")[0]].__path__[0]
            for patch in self._patches:
                patch.check(Path(package))
            self._is_checked = True

    def _spec_of_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        return next((spec for spec in specs if spec is not None), None)


def _holder(module: ModuleType, target: Target) -> tuple[Any, str, Callable[..., Any]]:
    """Where a target is an attribute (a class or the module), its name there, and what it is now."""
    *outer, name = target["function"].split(".")
    holder: Any = module
    for part in outer:
        holder = getattr(holder, part)
    return holder, name, holder.__dict__[name]
