"""The `iscp` command. Modules here import nothing heavy at the top: `--help` answers at once."""
