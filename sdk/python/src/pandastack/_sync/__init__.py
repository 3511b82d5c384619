# Generated from _async/__init__.py by tools/generate_sync.py: change that file, not this one.
"""The blocking client, generated from the async one."""
