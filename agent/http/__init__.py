"""The front door: from bytes on a connection to requests, and back.

Law of this folder: of the agent it imports agent/interface.py alone. app.py puts the handlers together,
front.py is a connection; everything else stands in the rooms below.
"""
