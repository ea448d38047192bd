"""Samples to a quantised ONNX model: what is measured, which variant keeps most, what dtype int8 stands for."""
