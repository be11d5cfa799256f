"""The network layer: listeners, connections, dispatch of requests, replies in request order.

A frame goes `frame_reader -> connection -> dispatch -> handler`, its reply
`reply_order -> output`. The kinds of answers are in `answers`.
"""
