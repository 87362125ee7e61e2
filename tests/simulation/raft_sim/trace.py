"""Messages and readies as one short line each, for traces and golden files.

Law of this file: text only; sorted, without addresses, the same for the same run.
"""

from __future__ import annotations

from typing import assert_never

from shoal.replication.messages import (
    AppendReply,
    AppendRequest,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from shoal.replication.state.ready import Ready


def describe(message: Message) -> str:
    """sender->receiver Kind term=... and what matters."""
    head = f"{message.sender}->{message.receiver} {type(message).__name__} term={message.term}"
    match message:
        case PreVote():
            return f"{head} last={message.last_index}/{message.last_term}"
        case Vote():
            transfer = " transfer" if message.transfer else ""
            return f"{head} last={message.last_index}/{message.last_term}{transfer}"
        case PreVoteReply() | VoteReply():
            return f"{head} granted={'yes' if message.granted else 'no'}"
        case AppendRequest():
            return head + _request(message)
        case AppendReply():
            return head + _reply(message)
        case TimeoutNow():
            return head
        case _:
            assert_never(message)


def _request(message: AppendRequest) -> str:
    runs = " ".join(str(run) for run in message.runs) or "-"
    parts = [
        f" previous={message.previous_index}/{message.previous_term} {runs} commit={message.commit_index}"
    ]
    if message.read_token:
        parts.append(f"round={message.read_token}")
    if message.configurations:
        parts.append(f"configurations={list(message.configurations)}")
    if message.quiet:
        parts.append("quiet")
    return " ".join(parts)


def _reply(message: AppendReply) -> str:
    if not message.accepted:
        hint = f"{message.reject_hint_index}/{message.reject_hint_term}"
        return f" refused previous={message.previous_index} hint={hint}"
    parts = [f" match={message.match_index} commit={message.commit_index}"]
    if message.read_token:
        parts.append(f"round={message.read_token}")
    if message.quiet:
        parts.append("quiet")
    return " ".join(parts)


def describe_ready(ready: Ready) -> str:
    """What a ready asks of the disk and of the reader."""
    parts = []
    if ready.hard_state is not None:
        parts.append(f"hard_state=({ready.hard_state.term},{ready.hard_state.vote})")
    if ready.truncate_from is not None:
        parts.append(f"truncate_from={ready.truncate_from}")
    if ready.append:
        parts.append("append=" + " ".join(str(run) for run in ready.append))
    if ready.noop_index is not None:
        parts.append(f"noop={ready.noop_index}")
    if ready.commit_index is not None:
        parts.append(f"commit={ready.commit_index}")
    if ready.read_states:
        parts.append("reads=" + " ".join(f"{token}:{index}" for token, index in ready.read_states))
    if ready.messages or ready.messages_after_sync:
        parts.append(f"messages={len(ready.messages)}+{len(ready.messages_after_sync)}")
    return " ".join(parts)
