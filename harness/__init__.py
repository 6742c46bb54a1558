"""The benchmark harness: enumerate cases, launch workers, gate, time, record, compare."""
