"""Targets: the Hugging Face adapter, and table models whose laws are known exactly."""
