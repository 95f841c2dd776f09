"""Errors, files, devices, provenance and measuring: what every room may use."""
