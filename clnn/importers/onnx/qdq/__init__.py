"""Float32 ONNX models as quantised ones in QDQ form: what is quantised, its weights, biases and files."""
