"""A trained model for places where this package is not: ONNX, and folders for timm."""
