"""What akter adds to manage.py."""
