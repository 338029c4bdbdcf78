"""`NamedTuple` as `typing` has it, but cheap to make: a broker defines two hundred of them while it starts.

`typing.NamedTuple` compiles each annotation, and for each class a constructor, and makes six methods: 0.1 to 0.3 ms a
class, a quarter of a start. Here annotations stay text, constructors of as many fields share their code but for the
names in it, and the methods are one base's. What a class costs afterwards (to construct, to read a field, to compare)
is the same: constructors and descriptors of the fields are what they were. Type checkers see `typing.NamedTuple`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Self

__all__ = ["NamedTuple"]

_FIELD: Any = type(vars(namedtuple("_", "field"))["field"])  # of an index and a docstring; reads in C
_SCOPE = {"new": tuple.__new__}


class _Methods(tuple[Any, ...]):
    """What all of them can do besides being tuples."""

    __slots__ = ()
    if TYPE_CHECKING:  # each class has its own, and no annotations but of its fields
        _fields: tuple[str, ...]

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, not {len(made)}")
        return made

    def _replace(self, /, **changed: Any) -> Self:
        made = self._make(map(changed.pop, self._fields, self))
        if changed:
            raise ValueError(f"{type(self).__name__} has no field {', '.join(map(repr, changed))}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@cache
def _field(index: int) -> Any:
    return _FIELD(index, None)


@cache
def _constructor(count: int) -> CodeType:
    """The code of a constructor of so many fields, whatever they are called."""
    fields = "".join(f"field{index}, " for index in range(count))
    code: CodeType = eval(f"lambda _class, {fields}: new(_class, ({fields}))").__code__
    return code


class _Maker(type):
    """Makes the classes, of which it is not the type: a class with a metaclass of its own is called more slowly."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = tuple(each for each in fields if each in namespace)
        if fields[len(fields) - len(defaults) :] != defaults:
            raise TypeError(f"{name}: a field without a default is behind one with a default")
        values = tuple(map(namespace.__getitem__, defaults))
        code = _constructor(len(fields)).replace(
            co_varnames=("_class", *fields), co_name="__new__", co_qualname=f"{name}.__new__"
        )
        namespace |= {each: _field(index) for index, each in enumerate(fields)}
        namespace |= {
            "__slots__": (),
            "__match_args__": fields,
            "__new__": FunctionType(code, _SCOPE, "__new__", values),
            "_fields": fields,
            "_field_defaults": dict(zip(defaults, values, strict=True)),
        }
        return type(name, (_Methods, *bases[1:]), namespace)


if TYPE_CHECKING:
    from typing import NamedTuple
else:
    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})
