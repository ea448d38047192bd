"""clnn.quantize_onnx: a float32 ONNX model as a quantised one that any engine runs, and what that costs."""
