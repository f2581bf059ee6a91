"""The Python-based backends that come with the server: each runs models of a framework that the model's environment has."""
