"""What a fact of Lineage looks like: the schemas of run.json, metrics.jsonl and checkpoint manifests.

This floor does no I/O (`publish` apart) and imports nothing but pydantic.
"""
