"""Whether a patch fits a release: found by reading the release's source, of which nothing is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Form = dict[str, Any]
"""One way in which a patch is applied: `name`, `settings`, `server_args`, `targets`."""
Target = dict[str, Any]
"""A function to replace, or without a `role` one that must be there: `module`, `function`, `parameters`, `contains`."""


def choose(forms: list[Form], package: Path) -> tuple[Form | None, list[str]]:
    """The first form of which everything is found in the package, else why the nearest one is not it.

    Args:
        forms: in order of preference.
        package: the folder of the package whose modules the targets name.
    """
    tried = [(form, misfits(form, package)) for form in forms]
    for form, reasons in tried:
        if not reasons:
            return form, []
    return None, min((reasons for _, reasons in tried), key=len)


def misfits(form: Form, package: Path) -> list[str]:
    """Why the targets of a form are not all in a package; empty where they are."""
    return [reason for target in form["targets"] for reason in _target_misfits(target, package)]


def _target_misfits(target: Target, package: Path) -> Iterator[str]:
    where = f"{target['module']}: {target['function']}"
    try:
        tree = ast.parse(_source(target["module"], package))
    except (OSError, SyntaxError, ValueError) as error:
        yield f"{target['module']} cannot be read ({type(error).__name__})"
        return
    function = _function(tree, target["function"].split("."))
    if function is None:
        yield f"{where} is not there"
        return
    found = [argument.arg for argument in _arguments(function)]
    if missing := [name for name in target["parameters"] if name not in found]:
        yield f"{where} has no parameter {', '.join(missing)}"
    text = ast.unparse(function)
    for piece in target["contains"]:
        if piece not in text:
            yield f"{where} does not contain `{piece}`"


def _source(module: str, package: Path) -> bytes:
    """The source of a module below a package, given by its full dotted name."""
    path = package.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes()


def _function(tree: ast.Module, names: list[str]) -> ast.FunctionDef | None:
    """The function at a dotted name: a class and its method, or a function of the module."""
    body: list[ast.stmt] = tree.body
    for name in names[:-1]:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes:
            return None
        body = classes[-1].body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == names[-1]]
    return functions[-1] if functions else None


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    starred = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]
