"""metrics.jsonl: splitting it (`scan`), appending to it (`writer`), reading and following it (`reader`), mending it.

The bytes and the rules are in docs/format.md. Nothing here imports pydantic or numpy until an event is parsed or a
column is built, so that a training process pays only for the writer.
"""
