"""The front door: from bytes on a connection to requests, and back.

Law of this folder: of the agent it imports agent/interface.py alone. app.py puts the handlers together,
connection.py is what a connection does; everything else stands in the rooms below.
"""
