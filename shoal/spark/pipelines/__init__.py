"""Declarative pipelines over topics: a project to begin with, and what its runs need."""
