"""What a reader derives from run.json and the log: pure functions, values in and values out (`whence` apart).

No clock, no file, no tensor. numpy is imported where arrays are wanted, never by importing this package.
"""
