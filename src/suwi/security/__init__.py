"""Authentication: TLS, SASL, and the principals that they establish.

The SASL mechanisms are pure state machines: a token in, a token or a result out. `sasl_session` is
the authentication state of one connection; `tls` makes contexts from PEM files and reloads them.
"""
