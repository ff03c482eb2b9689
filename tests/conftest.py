"""Fixtures for all tests."""

pytest_plugins = ["pytester"]
