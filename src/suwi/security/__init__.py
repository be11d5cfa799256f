"""Who the peer is: TLS, SASL, and the principal they end in.

The SASL machines are pure: a token in, a token or a verdict out. `sasl_session` is one
connection's way through them, `tls` makes contexts from PEM files and renews them.
"""
