"""Speculative decoding that you can prove. Importing this package imports neither torch nor transformers."""

__version__ = "0.1.0"
