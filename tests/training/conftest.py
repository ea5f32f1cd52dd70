"""Toy programs need no optimizing compiler."""

from toys import quick_compilation  # noqa: F401
