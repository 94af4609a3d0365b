"""What `import asyncrl` exports, beside the configuration and what may be plugged in."""
