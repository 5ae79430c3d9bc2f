"""Lineage: sessions, whole-state checkpoints and proven resumes for PyTorch training."""

__version__ = "0.1.0"
