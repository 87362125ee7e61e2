"""SWIM with Lifeguard: probing, suspicion, dissemination.

Law of this room: pure. A message or the time comes in; what is to be sent comes out.
"""
