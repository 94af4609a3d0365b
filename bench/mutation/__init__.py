"""Parts of `bench/mutants.py`: mutants of the product, and what runs them."""
