"""The OpenAI-compatible HTTP server of one session.

It turns HTTP into requests of the session and tokens into text and events; it neither schedules
nor samples. The session is known only by the protocol in `port`.
"""
