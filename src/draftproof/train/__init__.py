"""Training drafters: the text they learn from."""
