"""Reading parallel text as blocks of pairs: plain files, TSV, JSON lines, TMX and Parquet, compressed or not.

`reading.ParallelText` is the way in. All is read strictly, once, in order, and in bounded memory.
"""
