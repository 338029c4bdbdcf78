"""Anything in: a value or one error that names the field, never more bytes, memory or time than the input justifies."""
