"""Functions of one's own, named in a config as `package.module:name`."""

import importlib
from collections.abc import Callable
from typing import Any


def load_function(path: str) -> Callable[..., Any]:
    """Imports a function.

    Args:
      path: such as `my_package.rewards:length_reward`.

    Raises:
      ValueError: if the path is not of this form, or there is no such function.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise ValueError(f"expected an import path such as my_package.rewards:my_function, got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name!r} to import {path!r} from; put its directory "
                         "on the PYTHONPATH") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"the module {module_name!r} has no function {name!r}")
    return function
