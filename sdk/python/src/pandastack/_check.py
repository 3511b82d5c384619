"""Checks arguments against the annotations of the method that they are given to.

What must hold: a value of the wrong type is refused by the argument's name before anything is sent;
a value that the annotation allows is passed on untouched. Values could be secrets, so messages name
only their types.
"""

from __future__ import annotations

import collections.abc
import inspect
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union
from typing import Literal, get_args, get_origin, get_type_hints

from .errors import ArgumentTypeError

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

#: Location of an invalid value in an argument (``["PORT"]``), the expected kind, the actual value.
Fault = Tuple[str, str, Any]


class Kind(NamedTuple):
    """The values that an annotation allows."""

    #: In words, as in "must be ...".
    words: str
    fault: Callable[[Any], Optional[Fault]]


def checked(cls: C) -> C:
    """Make every public method of a class check the types of its arguments."""
    for name, function in list(vars(cls).items()):
        if inspect.isfunction(function) and not name.startswith("_"):
            setattr(cls, name, checked_call(function))
    return cls


def checked_init(cls: C) -> C:
    """Make a class check the types that it is made from."""
    setattr(cls, "__init__", checked_call(vars(cls)["__init__"]))
    return cls


def checked_call(function: F) -> F:
    """Make a method check the types of its arguments."""
    found: List[Arguments] = []  # read at the first call, so that imports stay quick

    def check(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not found:
            found.append(Arguments(function))
        found[0].check(args, kwargs)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return asynchronous  # type: ignore[return-value]

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return plain  # type: ignore[return-value]


class Arguments:
    """The arguments of a method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = function.__qualname__.replace(".__init__", "")
        self._positional: List[Tuple[str, Optional[Kind]]] = []
        self._named: Dict[str, Optional[Kind]] = {}
        self._others: Optional[Kind] = None
        scope = vars(sys.modules[function.__module__])
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            kind = kind_of(eval(parameter.annotation, scope))
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = kind
                continue
            self._named[parameter.name] = kind
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                self._positional.append((parameter.name, kind))

    def check(self, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise :class:`ArgumentTypeError` for the first wrong type. ``args`` begins with ``self``."""
        for (name, kind), value in zip(self._positional, args[1:]):
            self._check_one(name, kind, value)
        for name, value in kwargs.items():
            self._check_one(name, self._named.get(name, self._others), value)

    def _check_one(self, name: str, kind: Optional[Kind], value: Any) -> None:
        fault = None if kind is None else kind.fault(value)
        if fault is not None:
            where, words, odd = fault
            raise ArgumentTypeError(f"{self._name}: {name}{where} must be {words}, not {_shown(odd)}")


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    return "NaN" if isinstance(value, float) and value != value else type(value).__name__


def kind_of(annotation: Any) -> Optional[Kind]:
    """The values that an annotation allows; ``None`` for any."""
    if annotation is Any or annotation is object:
        return None
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Union:
        return _one_of([kind_of(arg) for arg in args])
    if origin is Literal:
        # Any string is allowed: the server may be newer than this client and know more values.
        return _PLAIN[str]
    if origin is tuple:
        return _tuple_of([kind_of(arg) for arg in args])
    if origin is collections.abc.Callable:
        return _FUNCTION
    if origin in (dict, collections.abc.Mapping):
        return _mapping_of(kind_of(args[1]))
    if origin in (list, collections.abc.Sequence):
        return _list_of(kind_of(args[0]))
    if hasattr(annotation, "__total__"):
        return _fields_of({name: kind_of(hint) for name, hint in get_type_hints(annotation).items()})
    return _PLAIN.get(annotation) or _plain(f"a {annotation.__name__}", annotation)


def _plain(words: str, *types: type) -> Kind:
    return Kind(words, lambda value: None if isinstance(value, types) else ("", words, value))


def _number(words: str, *types: type) -> Kind:
    def fault(value: Any) -> Optional[Fault]:
        fits = isinstance(value, types) and not isinstance(value, bool) and value == value
        return None if fits else ("", words, value)

    return Kind(words, fault)


_FUNCTION = Kind("a function", lambda value: None if callable(value) else ("", "a function", value))
_PLAIN: Dict[Any, Kind] = {
    str: _plain("a str", str),
    **{each: _plain("bytes", each) for each in (bytes, bytearray, memoryview)},
    bool: _plain("a bool", bool),
    int: _number("an int", int),
    float: _number("a number", int, float),
    Path: _plain("a path", str, os.PathLike),
    type(None): Kind("None", lambda value: None if value is None else ("", "None", value)),
}


def _is_list(value: Any) -> bool:
    is_text = isinstance(value, (str, bytes, bytearray, memoryview))
    return isinstance(value, collections.abc.Sequence) and not is_text


def _list_of(item: Optional[Kind]) -> Kind:
    words = "a list" if item is None else f"a list of {item.words.replace('a ', '')}"

    def fault(value: Any) -> Optional[Fault]:
        if not _is_list(value):
            return "", words, value
        return None if item is None else _inner(item, enumerate(value))

    return Kind(words, fault)


def _tuple_of(items: List[Optional[Kind]]) -> Kind:
    words = f"a tuple of {len(items)}"

    def fault(value: Any) -> Optional[Fault]:
        if not _is_list(value) or len(value) != len(items):
            return "", words, value
        known = [(index, item) for index, item in enumerate(items) if item is not None]
        found = (_inner(item, [(index, value[index])]) for index, item in known)
        return next((each for each in found if each is not None), None)

    return Kind(words, fault)


def _mapping_of(item: Optional[Kind]) -> Kind:
    def fault(value: Any) -> Optional[Fault]:
        if not isinstance(value, collections.abc.Mapping):
            return "", "a dict", value
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return " keys", "strings", odd
        return None if item is None else _inner(item, value.items())

    return Kind("a dict", fault)


def _fields_of(fields: Dict[str, Optional[Kind]]) -> Kind:
    def fault(value: Any) -> Optional[Fault]:
        if not isinstance(value, collections.abc.Mapping):
            return "", "a dict", value
        for name, kind in fields.items():
            found = _inner(kind, [(name, value[name])]) if kind is not None and name in value else None
            if found is not None:
                return found
        return None

    return Kind("a dict", fault)


def _inner(item: Kind, pairs: Any) -> Optional[Fault]:
    for key, value in pairs:
        found = item.fault(value)
        if found is not None:
            where, words, odd = found
            return f"[{key!r}]{where}", words, odd
    return None


def _one_of(kinds: List[Optional[Kind]]) -> Optional[Kind]:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    # Messages do not suggest None: leaving the argument out is the same.
    words = " or ".join(dict.fromkeys(kind.words for kind in known if kind.words != "None"))

    def fault(value: Any) -> Optional[Fault]:
        inner: Optional[Fault] = None
        for kind in known:
            found = kind.fault(value)
            if found is None:
                return None
            inner = found if found[0] else inner
        return inner or ("", words, value)

    return Kind(words, fault)
