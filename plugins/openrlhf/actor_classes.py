"""Ray's actor classes and the plain classes under them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


def plain(actor_class: Any) -> Any:
    """The class that was decorated with `ray.remote`; Ray lets nobody derive from what the decorator made of it."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def by_reference(cls: _Class) -> _Class:
    """Make every method of `cls` one that Ray's workers look up in their own modules.

    `ray.remote` wraps all methods of a class, inherited ones too, and pickles what it cannot import by name: the
    methods of a class that OpenRLHF decorated, since its name belongs to the actor class. Those would run in the worker
    with the driver's copy of their module's globals, and a `super()` in them would name a class that the instance does
    not derive from. With this, `cls` has a method of its own in the place of each, which calls it through `super`.

    Args:
        cls: derives from such a class, and can be imported by its name.
    """
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        static = isinstance(inspect.getattr_static(cls, name), staticmethod)
        if name not in vars(cls) and not static:
            setattr(cls, name, _forwarding(cls, name, method))
    return cls


def _forwarding(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        async def forward_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await getattr(super(cls, self), name)(*args, **kwargs)

        forward: Callable[..., Any] = forward_async
    else:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(cls, self), name)(*args, **kwargs)

    forward.__name__ = name
    forward.__qualname__ = f"{cls.__qualname__}.{name}"
    forward.__module__ = cls.__module__
    forward.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]  # Ray checks calls against it
    return forward
