"""A ledger: accounts that pay each other, and money that neither appears nor vanishes."""
