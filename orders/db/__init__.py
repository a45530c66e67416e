"""SQL: tables, transactions and statements. Knows no context."""
