"""Tables, charts and one page, rendered from `results/` alone. Same input, same bytes out."""
