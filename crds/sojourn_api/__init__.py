"""The contract between Sojourn's components: names, types and parsing.

Standard library only: it is imported by every component, and knows none of them.
"""
