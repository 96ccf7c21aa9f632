"""The primitives, each a folder with the same files. `app.registry` lists them."""
