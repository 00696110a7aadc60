"""Run with the hook: imports modules of a real release, prints which of their functions are replaced, as JSON.

Arguments: the folder of the package, and the modules.
"""

import importlib
import json
import sys
from pathlib import Path
from types import FunctionType, ModuleType

from stubs import stand_in_for_all_but


def replaced(module: ModuleType) -> list[str]:
    """Functions of a module and of its own classes that stand in for others, with code from elsewhere."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    members = {f"{holder.__name__}.{name}": value for holder in (module, *own) for name, value in vars(holder).items()}
    functions = {name: value for name, value in members.items() if isinstance(value, FunctionType)}
    return [
        name
        for name, value in functions.items()
        if hasattr(value, "__wrapped__") and Path(value.__code__.co_filename).parent.parent.name == "patches"
    ]


package, *modules = sys.argv[1:]
stand_in_for_all_but(set(modules), Path(package))
print(json.dumps(sorted(name for module in modules for name in replaced(importlib.import_module(module)))))
