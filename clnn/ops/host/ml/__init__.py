"""Operators of ONNX's domain ai.onnx.ml: trees, linear models, support vectors, labels and features."""
