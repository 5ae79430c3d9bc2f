"""The terminal UI of Lineage; imported only by `lineage tui`."""
