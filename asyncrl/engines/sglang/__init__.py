"""The engine `sglang`: a real SGLang server, spoken to over HTTP. Nothing of SGLang is imported: it
lives in an environment of its own."""
