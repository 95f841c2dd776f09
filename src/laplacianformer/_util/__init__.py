"""Errors, files, devices, provenance and measuring: helpers that every package here may use. Not for users."""

__all__: list[str] = []
