"""The warm forkserver's Python side: an interpreter that has imported, and forks ranks.

Nothing here is imported by ``import troupe``. The binary carries these files and writes
them out on each node, so that the two sides of the protocol are always of one build and
an interpreter needs no package of ours. ``sitecustomize.py`` is the way in.
"""
