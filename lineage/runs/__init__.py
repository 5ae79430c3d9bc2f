"""run.json and run.lock: create, open, find and hold runs; say in which state they are."""
