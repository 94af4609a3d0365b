"""The agents' gateway: an OpenAI-compatible endpoint in front of whatever engine a run uses, where
each call is recorded token by token."""
