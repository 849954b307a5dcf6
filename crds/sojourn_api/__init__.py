"""The contract between Sojourn's components: names, types and parsing, with the standard library only."""
