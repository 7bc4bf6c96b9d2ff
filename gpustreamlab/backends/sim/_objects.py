"""What the array module holds besides functions: ufuncs, what is indexed to make arrays, files of several arrays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab.backends.sim._functions import UFUNC_METHODS

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._array import SimArray
    from gpustreamlab.backends.sim._xp import ArrayModule


class SimUfunc:
    """A ufunc of the array module, with those of its methods that CuPy has.

    Parameters
    ----------
    module
        The array module.
    plain
        NumPy's ufunc.
    """

    def __init__(self, module: ArrayModule, plain: np.ufunc) -> None:
        self._module = module
        self._plain = plain
        self.__name__ = plain.__name__
        self.__doc__ = plain.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on the device."""
        return self._module.call_function(self.__name__, self._plain, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in UFUNC_METHODS:
            return self._module.find(f"{self.__name__}.{name}")
        return getattr(self._plain, name)  # nin, nout, types, identity

    def __repr__(self) -> str:
        return f"<ufunc {self.__name__!r} of the simulated device>"


class Indexer:
    """What is indexed to make an array, such as ``xp.mgrid`` and ``xp.r_``."""

    def __init__(self, module: ArrayModule, name: str, plain: Any) -> None:
        self._module, self._name, self._plain = module, name, plain

    def __getitem__(self, key: Any) -> Any:
        return self._module.call_function(self._name, self._plain.__getitem__, (key,), {})


class Archive(AbstractContextManager["Archive"]):
    """Several arrays in a file; each is copied to the device when it is looked up."""

    def __init__(self, module: ArrayModule, archive: Any) -> None:
        self._module, self._archive = module, archive
        self.files, self.close = archive.files, archive.close

    def __getitem__(self, name: str) -> SimArray:
        return self._module.asarray(self._archive[name])

    def __exit__(self, *error: object) -> None:
        self.close()
