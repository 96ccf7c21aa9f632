"""The command line: thin skins over the same ops and the HTTP API. A file for each command; `command` lists them."""
