"""A plugin for mypy: log.info("%d partitions", count) is held to its format as "%d partitions" % count is.

mypy looks at the % operator and not at logging's calls, which format only when a line is written: with a method where
a number was meant, it is at run time, in a user's log, that the traceback appears. Named in pyproject.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mypy.nodes import ARG_STAR, StrExpr
from mypy.plugin import MethodContext, Plugin
from mypy.subtypes import is_subtype
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Type, UnionType, get_proper_type

METHODS = {f"logging.Logger.{name}" for name in ("debug", "info", "warning", "error", "critical", "exception")}
_SPEC = re.compile(r"%[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?([a-zA-Z%])")


class LoggingFormats(Plugin):
    """Looks at every call of a logger."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """mypy's question whether a method is ours."""
        return _check if fullname in METHODS else None


def _check(context: MethodContext) -> Type:
    """Complain where a value is not what its place in the format takes; the call's type stays."""
    message = context.args[0][0] if context.args and context.args[0] else None
    if isinstance(message, StrExpr) and len(context.args) > 1 and ARG_STAR not in context.arg_kinds[1]:
        kinds = [found[1] for found in _SPEC.finditer(message.value) if found[1] != "%"]
        types = context.arg_types[1]
        if len(kinds) != len(types):
            context.api.fail(f"{len(kinds)} places in the format, {len(types)} values", context.context)
        for kind, given in zip(kinds, types, strict=False):
            if not _fits(kind, given, context):
                context.api.fail(f'"%{kind}" of the format is given {given}', context.context)
    return context.default_return_type


def _fits(kind: str, given: Type, context: MethodContext) -> bool:
    given = get_proper_type(given)
    if isinstance(given, UnionType):
        return all(_fits(kind, each, context) for each in given.items)
    if isinstance(given, AnyType):
        return True
    if kind in "sra":  # anything can be written so, but no reader wants to see a method
        return not isinstance(given, FunctionLike) or (isinstance(given, CallableType) and given.is_type_obj())
    number = context.api.named_generic_type("builtins.float", [])
    whole = context.api.named_generic_type("builtins.int", [])
    fallback = given if isinstance(given, Instance) else getattr(given, "fallback", given)
    return is_subtype(fallback, whole if kind in "xXoc" else number) or is_subtype(fallback, whole)


def plugin(version: str) -> type[Plugin]:
    """mypy's way in."""
    return LoggingFormats
