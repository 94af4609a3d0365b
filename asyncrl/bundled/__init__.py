"""The bundled small model, and its warm-up before a first run: lessons, and their outlook."""
