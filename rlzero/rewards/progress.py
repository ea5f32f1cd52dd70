"""What a grading worker notes in memory that it shares with the pool: which sample it is at, and since when."""

import struct

# When the sample in hand was begun (monotonic clock, which processes share), and its place in the batch.
PROGRESS = struct.Struct("dq")
# The place between batches.
IDLE = -1
