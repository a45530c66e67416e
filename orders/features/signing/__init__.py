# <webhooks or providers/>
"""Signed messages over HTTP: their signatures, the URLs they may be sent to, and how they are sent. No feature, but what
webhooks and providers share: it goes with the second of them.
"""
