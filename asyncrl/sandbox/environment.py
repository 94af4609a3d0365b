"""The environment of processes that judge answers. Invariant: no variable is passed on that is not
listed here, and so no key, token or password."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = """
    HOME LANG LANGUAGE PATH TMPDIR TZ
    LD_LIBRARY_PATH PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONHOME PYTHONPATH PYTHONSAFEPATH
    PYTHONUNBUFFERED PYTHONUTF8 VIRTUAL_ENV
    CUDA_VISIBLE_DEVICES HF_HOME HF_HUB_OFFLINE TOKENIZERS_PARALLELISM
    MKL_NUM_THREADS NUMEXPR_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS RAYON_NUM_THREADS
"""
ALLOWED = frozenset(_NAMES.split())


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are passed on: those of ALLOWED, and of the locale.

    >>> allowed({"PATH": "/bin", "LC_ALL": "C", "WANDB_API_KEY": "secret"})
    {'PATH': '/bin', 'LC_ALL': 'C'}
    """
    return {
        name: value
        for name, value in environment.items()
        if name in ALLOWED or name.startswith("LC_")
    }
