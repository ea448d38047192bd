"""Recurrent layers: RNN, GRU and LSTM over sequences, in one or both directions."""

from __future__ import annotations
