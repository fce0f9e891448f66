"""Tests of the library's parts that need no node: python3 -m unittest discover scripts."""
