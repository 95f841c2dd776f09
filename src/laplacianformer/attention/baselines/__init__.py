"""Other token mixers in the same slot, to compare with."""
