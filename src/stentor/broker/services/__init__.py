"""Requests and their responders, at one broker and among all."""
