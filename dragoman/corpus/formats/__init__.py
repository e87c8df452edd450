"""Reads parallel text as blocks of pairs: plain files, TSV, JSON lines, TMX and Parquet, compressed or not.

Start at `reading.ParallelText`. Files are read strictly, once, in order, and in bounded memory.
"""
