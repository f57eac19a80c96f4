"""What Ray is told before it starts: where to listen, and what its workers find around them."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veridical.errors import InputError


@contextmanager
def bound_to(host: str) -> Iterator[None]:
    """Let Ray take 127.0.0.1 at its word while a cluster starts or is connected to.

    On Linux Ray replaces a loopback address by one that other machines reach, unless it is told that there
    are no other machines: by a variable for the processes it starts, by a constant for this one.
    """
    from ray._private import ray_constants

    variable = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, told = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(variable)
    if host == "127.0.0.1":
        ray_constants.ENABLE_RAY_CLUSTER, os.environ[variable] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(variable, None)
        if told is not None:
            os.environ[variable] = told


def environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime environment of workers: the caller's, with this process's import paths and bounds.

    Installed packages are left to each node's own Python.
    """
    installed = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    own = [
        path
        for path in dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
        if os.path.isdir(path) and not any(Path(path).resolve().is_relative_to(p) for p in installed)
    ]
    bounds = {name: value for name, value in os.environ.items() if name.startswith("VERIDICAL_MAX_")}
    variables = {"PYTHONPATH": os.pathsep.join(own), **bounds, **given.get("env_vars", {})}
    return {**given, "env_vars": variables}


def import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise InputError("the Ray executor needs Ray: pip install 'veridical[ray]'") from None
    return ray


def connect(address: str | None, num_cpus: int | None, host: str, object_store_mib: int | None) -> bool:
    """Connect to a cluster, or start one here; whether it is ours to leave, which one from before is not."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    # a study is nobody's affair but its owner's
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        with bound_to(address.rpartition(":")[0]):
            ray.init(address=address, **quiet)
        return True
    # a token for this cluster alone: other users of the machine stay out, and Ray, which otherwise
    # keeps one token in the home folder, writes nothing there
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # workers are as important as this process, as they are without Ray
    os.environ.setdefault("RAY_worker_niceness", "0")
    with bound_to(host):
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=None if object_store_mib is None else object_store_mib * 2**20,
            include_dashboard=False,
            _node_ip_address=host,
            **quiet,
        )
    where = next(iter(ray.nodes()))["NodeManagerAddress"]
    if where != host:
        ray.shutdown()
        raise InputError(f"Ray would listen on {where} instead of {host}; it was not started")
    return True
