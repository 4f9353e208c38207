"""Proof and audit of losslessness."""
