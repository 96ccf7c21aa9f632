"""Messages as values: states, destinations, commands, outcomes. Pure; nothing here touches a database."""
