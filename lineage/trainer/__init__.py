"""The hook: what a training loop holds while Lineage records, checkpoints and proves it."""
