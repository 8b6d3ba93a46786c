"""Stentor under other people's task queues: Taskiq, Dramatiq, Celery. See docs/integrations.md.

Each module needs its framework, and nothing here is loaded unless somebody imports it by name.
"""
