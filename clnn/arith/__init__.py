"""Arithmetics: integer parameters, numpy references and the names of their templates."""


from __future__ import annotations
