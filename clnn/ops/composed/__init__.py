"""ONNX operators that become nodes of several families, without a kernel of their own."""
