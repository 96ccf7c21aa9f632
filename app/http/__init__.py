"""HTTP in and out: problems, authentication, middleware, thin routes, probes, metrics and the OpenAPI. No decisions of any
primitive, no SQL. Primitives' `routes.py` build on `routing` (how a route is declared) and `paging` (how lists are cut).
"""
