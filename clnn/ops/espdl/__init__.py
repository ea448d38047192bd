"""ESP-DL's layers as nodes: for its classes and for its model files."""
