"""The stub: the process of one instance of a Python model.

`docs/design/python.md` describes what it and its worker tell each other. `python -m nereid.stub` runs it, with the socket as file
descriptor 3. What models see of it is in `triton_python_backend_utils`.
"""
