"""The tiny GPT of the demo: `lineage.demo.train` is the example to read; importing this package loads no torch."""
