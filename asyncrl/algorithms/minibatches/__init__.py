"""Rules that divide the tokens of a step among its updates. No torch here: the configuration
imports this."""
