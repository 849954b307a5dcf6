"""The runtime of one session pod: engine, saved context and OpenAI server.

Importing the package imports nothing heavy: start-up counts, and SIGTERM must find its handler.
"""
