"""Akter's history for Django: a migration for each revision of `akter.migrations`, under the same number."""
