"""One module per revision; nothing in them changes once released."""
