"""The revisions, oldest first; each is plain DDL that never imports akter."""
