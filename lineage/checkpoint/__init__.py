"""Whole-state checkpoints: published so that no crash makes a wrong one look right, restored exactly or not at all.

Modules load lazily, since most of them import torch. `docs/checkpoints.md` is the page for users,
`docs/format.md`, "Checkpoints", the bytes.
"""
