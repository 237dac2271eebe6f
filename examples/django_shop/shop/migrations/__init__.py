"""The shop's own tables; akter's are migrated by the app `akter`."""
