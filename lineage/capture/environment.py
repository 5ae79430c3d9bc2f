"""Where a session ran, as far as it can change numerics or be needed to rebuild it.

Read from files and from what the process has loaded already: no pip, no nvidia-smi, no CUDA context made on the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lineage.capture.argv import printable
from lineage.capture.redact import redact_tree
from lineage.capture.runtime import loaded_torch, torch_flags
from lineage_schemas.run import Environment, Gpu

VARIABLES: Final = frozenset(
    {
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
        "GOTO_NUM_THREADS",
        "HIP_VISIBLE_DEVICES",
        "LD_PRELOAD",
        "MALLOC_CONF",
        "NUMEXPR_NUM_THREADS",
        "NVIDIA_TF32_OVERRIDE",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "PYTHONHASHSEED",
        "PYTHONOPTIMIZE",
        "ROCR_VISIBLE_DEVICES",
        "TOKENIZERS_PARALLELISM",
        "VECLIB_MAXIMUM_THREADS",
        "XLA_FLAGS",
    }
)
"""Variables that can change numerics or threads. What names one job (SLURM_JOB_ID, RANK) is not among them: it would
make a new environment of every session."""

PREFIXES: Final = (
    "CUDNN_",
    "GOMP_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_",
)
"""Families of variables all of whose members are settings of numerical libraries."""

_FIELD: Final = re.compile(r"^(Name|Version): *(\S+)", re.MULTILINE)
_THREADS: Final = {
    "omp": "OMP_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
}


def environment_digest(environment: Environment) -> str:
    """The name under which run.json keeps an environment: SHA-256 of its canonical JSON.

    Canonical: the wire form, keys sorted by code point, no spaces, UTF-8.
    """
    text = json.dumps(environment.to_wire(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def capture_environment(*, load_torch: bool = False, variables: Mapping[str, str] | None = None) -> Environment:
    """This process's environment, in well under a second.

    Args:
        load_torch: import torch for its facts when the process has not yet (seconds); else they are left out.
        variables: the environment variables to choose from; `os.environ` when None.

    What cannot be found is None. GPU memory and capability are there once the training code has made its CUDA
    context; making one costs memory and forbids forking, so that is not done here.
    """
    variables = os.environ if variables is None else variables
    torch_module = loaded_torch(load=load_torch)
    libc = " ".join(part for part in platform.libc_ver() if part)
    facts = Environment(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        machine=platform.machine(),
        libc=libc or None,
        cpu=_cpu_model(),
        num_cpus=_num_cpus(),
        memory_bytes=_memory_bytes(),
        packages=installed_packages(),
        driver=_driver(),
        gpus=_gpus_from_driver(),
        blas=_blas(torch_module),
        threads=_threads(variables),
        variables=_allowed(variables),
    )
    return facts if torch_module is None else _with_torch(facts, torch_module)


def installed_packages() -> dict[str, str]:
    """Installed distribution (normalized name) to version, as the running interpreter would import them."""
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # A broken installation has no name or no version; the first on the path is the one that is imported. The
        # head of the file is read as text: a mail parser, as importlib uses it, takes five times as long.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
            fields = dict(_FIELD.findall(text.partition("\n\n")[0]))
            if "Name" in fields and "Version" in fields:
                name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
                packages.setdefault(name, printable(fields["Version"]))
    return dict(sorted(packages.items()))


def _allowed(variables: Mapping[str, str]) -> dict[str, str]:
    allowed = {name: printable(value) for name, value in sorted(variables.items()) if _is_allowed(name)}
    masked: dict[str, str] = redact_tree(allowed).value
    return masked


def _is_allowed(name: str) -> bool:
    # Places on a disk are no settings of a computation, and often name the user.
    return name in VARIABLES or (name.startswith(PREFIXES) and not name.endswith(("_DIR", "_PATH", "_FILE", "_HOME")))


def _threads(variables: Mapping[str, str]) -> dict[str, int]:
    threads = {}
    for name, variable in _THREADS.items():
        with contextlib.suppress(KeyError, ValueError):
            threads[name] = int(variables[variable])
    return threads


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        found = re.search(r"^(?:model name|Model|cpu model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or None


def _num_cpus() -> int | None:
    """CPUs this process may use, which is what the thread pools start from."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


_NVIDIA: Final = Path("/proc/driver/nvidia")


def _driver() -> str | None:
    with contextlib.suppress(OSError):
        text = (_NVIDIA / "version").read_text("utf-8", "replace")
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
        if found:
            return found[1]
    return None


def _gpus_from_driver() -> list[Gpu]:
    gpus = []
    with contextlib.suppress(OSError):
        for folder in sorted((_NVIDIA / "gpus").iterdir()):
            found = re.search(r"^Model:\s*(.+)$", (folder / "information").read_text("utf-8", "replace"), re.MULTILINE)
            if found:
                gpus.append(Gpu(name=found[1].strip()))
    return gpus


def _blas(torch_module: Any) -> str | None:
    """The libraries behind matrix products, as far as this process has loaded who uses them."""
    found = []
    if torch_module is not None:
        with contextlib.suppress(AttributeError, RuntimeError):
            info = re.search(r"BLAS_INFO=([^,\s]+)", str(torch_module.__config__.show()))
            if info:
                found.append(f"torch {info[1]}")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        with contextlib.suppress(Exception):  # an old or odd numpy says nothing; that is an answer too
            blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
            found.append(f"numpy {blas['name']} {blas['version']}")
    return "; ".join(found) or None


def _with_torch(facts: Environment, torch_module: Any) -> Environment:
    version = torch_module.version
    cudnn = None
    gpus = facts.gpus
    if version.cuda is not None:
        with contextlib.suppress(RuntimeError, AttributeError):
            cudnn = torch_module.backends.cudnn.version()
        with contextlib.suppress(RuntimeError, AttributeError, AssertionError):
            if torch_module.cuda.is_initialized():
                gpus = _gpus_from_torch(torch_module)
    return facts.model_copy(
        update={
            "torch": str(torch_module.__version__),
            "torch_git": version.git_version,
            "cuda": version.cuda or (f"hip {version.hip}" if getattr(version, "hip", None) else None),
            "cudnn": None if cudnn is None else str(cudnn),
            "gpus": gpus,
            "threads": {
                **facts.threads,
                "torch_intraop": int(torch_module.get_num_threads()),
                "torch_interop": int(torch_module.get_num_interop_threads()),
            },
            "determinism": torch_flags(torch_module),
        }
    )


def _gpus_from_torch(torch_module: Any) -> list[Gpu]:
    cuda = torch_module.cuda
    found = (cuda.get_device_properties(number) for number in range(cuda.device_count()))
    return [Gpu(name=one.name, memory_bytes=one.total_memory, capability=f"{one.major}.{one.minor}") for one in found]
