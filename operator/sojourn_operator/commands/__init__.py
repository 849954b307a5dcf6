"""Subcommands besides `run`: questions to the plan, the CRDs, the release."""
