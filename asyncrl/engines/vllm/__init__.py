"""The engine `vllm`: a real vLLM server, spoken to over HTTP. Nothing of vLLM is imported: it
lives in an environment of its own."""
