"""The database: engine, transactions, the one retry boundary, dialects, migrations. No business decision lives here."""
