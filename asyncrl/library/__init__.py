"""Names that `import asyncrl` exports, beside the configuration and the plug-ins."""
