"""Engines that are servers, spoken to over HTTP: everything that SGLang's and vLLM's have in
common."""
