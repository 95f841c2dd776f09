"""A trained model for places where this package is not: ONNX, compiled packages, and folders for timm."""
