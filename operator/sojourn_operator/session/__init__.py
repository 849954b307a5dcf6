"""What a session's pod and its end mean for its status, and what has to be done. Pure."""
