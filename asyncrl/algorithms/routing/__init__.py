"""Mixtures of experts: which experts a token gets, and how evenly they are used."""
