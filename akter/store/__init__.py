"""The durable record: every SQL statement, one module per thing that is stored."""
