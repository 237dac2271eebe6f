"""What an account is, and what it answers."""

from __future__ import annotations

from akter import Actor, Akter, Rejection, command, query


class InsufficientFunds(Rejection):
    """There is not enough money in the account."""

    balance: int
    asked: int


class AlreadyOpen(Rejection):
    """The account is open already."""

    holder: str


class OtherFile(Rejection):
    """The ledger is that of another file."""


class Ledger(Actor, singleton=True):
    """All the accounts together, which are those of one file."""

    file: str = ""

    @command
    def use(self, file: str) -> None:
        """Be the ledger of a file, told by what is in it."""
        if self.file not in ("", file):
            raise OtherFile
        self.file = file


class Account(Actor):
    """One holder's money, in cents."""

    holder: str = ""
    balance: int = 0

    @command(creates=True)
    def open(self, holder: str, balance: int) -> None:
        """Open the account with some money."""
        if self.holder:
            raise AlreadyOpen(holder=self.holder)
        self.holder, self.balance = holder, balance

    @command
    def debit(self, amount: int) -> int:
        """Take money out, if it is there; the new balance."""
        if amount > self.balance:
            raise InsufficientFunds(balance=self.balance, asked=amount)
        self.balance -= amount
        return self.balance

    @command
    def credit(self, amount: int) -> int:
        """Put money in; the new balance."""
        self.balance += amount
        return self.balance

    @query
    def statement(self) -> tuple[str, int]:
        """Whose money it is, and how much."""
        return self.holder, self.balance


def ledger(data: str) -> Akter:
    """The application, on the PostgreSQL that keeps its files in `data`."""
    return Akter(f"embedded:{data}", actors=[Ledger, Account])
