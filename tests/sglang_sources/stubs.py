"""Imports chosen modules of a real release, with everything that they import replaced by stand-ins."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _StandInType(type):
    """Of classes that may be used as whatever a module uses at import: base, decorator, type, container, function."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_stand_in" not in vars(cls):  # a real class derived from one
            return super().__call__(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) else _stand_in("made")

    def __getitem__(cls, key: Any) -> Any:
        return _stand_in("item")

    def __iter__(cls) -> Any:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _stand_in(name: str) -> Any:
    return _StandInType(name, (), {"is_stand_in": True, "__init__": lambda self, *args, **kwargs: None})


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _stand_in  # type: ignore[attr-defined]


class _PackageLoader(_StandInLoader):
    """An empty package in a real folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = [str(self._folder)]


class ReleaseFinder(MetaPathFinder):
    """Finds the folders above wanted modules as empty packages, and stand-ins for all else of the package."""

    def __init__(self, package: Path, wanted: set[str]) -> None:
        self._package, self._wanted = package, wanted

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, *inner = fullname.split(".")
        if top != self._package.name or fullname in self._wanted:
            return None
        is_above = any(name.startswith(fullname + ".") for name in self._wanted)
        loader = _PackageLoader(self._package.joinpath(*inner)) if is_above else _StandInLoader()
        return importlib.util.spec_from_loader(fullname, loader, is_package=True)


class MissingFinder(MetaPathFinder):
    """Last of all: stand-ins for what is not installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, _StandInLoader(), is_package=True)


def stand_in_for_all_but(wanted: set[str], package: Path) -> None:
    """From now on imports only wanted modules of a package, and stand-ins for the others and for what is missing."""
    sys.meta_path.insert(1, ReleaseFinder(package, wanted))  # behind the hook
    sys.meta_path.append(MissingFinder())
