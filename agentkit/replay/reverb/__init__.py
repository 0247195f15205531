"""Replay on a Reverb server. Extra: ``reverb``.

`library` is the one file that imports Reverb and TensorFlow. Importing this package loads neither, so that the files
that need none of them (`packing`, `sampler`, `writer`) are tested without.
"""
