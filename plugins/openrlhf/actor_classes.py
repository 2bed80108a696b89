"""Ray's actor classes and the plain classes under them."""

from __future__ import annotations

from typing import Any


def plain(actor_class: Any) -> Any:
    """The class that was decorated with `ray.remote`; Ray lets nobody derive from what the decorator made of it.

    A class that derives from it and stands in an importable module is pickled by reference, so the worker imports
    that module and OpenRLHF's. Left as it is, an actor class is pickled by value, with the driver's copy of every
    function: what is patched in the worker's modules is then silently not what runs.
    """
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
