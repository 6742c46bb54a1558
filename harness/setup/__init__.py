"""Set-up behind the make targets: the virtual environment, the native build, and what each target runs.

Runs on a bare Python 3.11 before anything is installed, so it imports the standard library only.
"""
