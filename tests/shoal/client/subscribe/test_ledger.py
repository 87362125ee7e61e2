"""The ledger of held messages, without a clock: acks and their receipts, leases, orders, and random lives."""

from __future__ import annotations

import random

import pytest

from shoal.client.subscribe.ledger import (
    ACK,
    ACTS_MAX,
    EXTENDED_MAX_MS,
    FLUSH_ACKS,
    FLUSH_MS,
    RELEASE,
    ActRequest,
    HeldAnswer,
    Ledger,
    MessageOrder,
    MessagePiece,
    Word,
)
from shoal.format.receipt import head_of, parse

LEASE_MS = 30_000
NACK = Word("nack")


def head(delivery: int, partition: int = 0) -> str:
    return head_of(b"g" * 16, b"k", partition, 1, delivery)


def received(
    ledger: Ledger, rows: int, *, delivery: int = 1, now_ms: int = 0, partition: int = 0, keys: bytes = b""
) -> HeldAnswer:
    """An answer of rows from offset 100 * delivery on. `keys`: a letter a row, `-` for none."""
    names = [None if letter == ord("-") else bytes([letter]) for letter in keys]
    answer = HeldAnswer(head(delivery, partition), partition, [MessagePiece(100 * delivery, rows, 1)], names)
    ledger.received(answer, LEASE_MS, now_ms, now_ms)
    return answer


def take(ledger: Ledger, now_ms: int) -> tuple[HeldAnswer, int] | None:
    """The row at the head of the line."""
    found = ledger.first(now_ms)
    assert found is None or ledger.take(*found)
    return found


def taken(ledger: Ledger, count: int, now_ms: int = 0) -> list[int]:
    """So many of them."""
    found = [take(ledger, now_ms) for _ in range(count)]
    return [row for one in found if one is not None for row in [one[1]]]


def offsets(request: ActRequest) -> list[int | None]:
    """The messages that a request names; None: whole answers."""
    return [parse(text).offset for text in request.receipts]


def test_an_answer_that_was_worked_off_is_acknowledged_by_one_receipt() -> None:
    """It rides with the next receive, and nothing is left behind."""
    ledger = Ledger()
    answer = received(ledger, 100)
    for row in taken(ledger, 100):
        ledger.say(answer, [row], ACK, 5)
    request = ledger.riding(6)
    assert request is not None
    assert request.receipts == [answer.receipt]
    assert ledger.riding(7) is None
    ledger.confirm(request)
    assert not ledger.answers
    assert ledger.deadline_ms() is None


def test_acks_of_an_unfinished_answer_wait_for_the_rest_and_no_longer_than_their_time() -> None:
    """Receipts name single messages then; what is still in hand is not named."""
    ledger = Ledger()
    answer = received(ledger, 4)
    taken(ledger, 3)
    ledger.say(answer, [0], ACK, 10)
    ledger.say(answer, [2], ACK, 50)
    assert ledger.riding(11) is None
    assert ledger.due(10 + FLUSH_MS - 1) == []
    assert ledger.deadline_ms() == 10 + FLUSH_MS
    (request,) = ledger.due(10 + FLUSH_MS)
    assert offsets(request) == [100, 102]
    ledger.confirm(request)
    ledger.say(answer, [1], ACK, 300)
    taken(ledger, 1)
    ledger.say(answer, [3], ACK, 300)
    last = ledger.riding(300)
    assert last is not None
    assert last.receipts == [answer.receipt]  # of the others all are confirmed


def test_a_whole_receipt_never_covers_a_message_with_another_word() -> None:
    """A nack that is not confirmed yet keeps the acks of the same answer to single receipts."""
    ledger = Ledger()
    answer = received(ledger, 3)
    taken(ledger, 3)
    ledger.say(answer, [1], NACK, 0)
    ledger.say(answer, [0, 2], ACK, 0)
    acks, nacks = ledger.due(0, everything=True)
    assert (acks.word, offsets(acks)) == (ACK, [100, 102])
    assert (nacks.word, offsets(nacks)) == (NACK, [101])
    ledger.confirm(nacks)
    ledger.confirm(acks)
    assert not ledger.answers


def test_words_other_than_acks_leave_at_once_and_each_kind_by_itself() -> None:
    """Delays and reasons are of a request, not of a receipt."""
    ledger = Ledger()
    answer = received(ledger, 5)
    taken(ledger, 4)
    ledger.say(answer, [0], NACK, 0)
    ledger.say(answer, [1], Word("nack", 5_000, "later"), 0)
    ledger.say(answer, [2], Word("reject"), 0)
    ledger.say(answer, [3], RELEASE, 0)
    assert ledger.deadline_ms() == 0
    said = {(one.word.kind, one.word.delay_ms): offsets(one) for one in ledger.due(0)}
    assert said == {
        ("nack", None): [100], ("nack", 5_000): [101], ("reject", None): [102], ("release", None): [103]
    }  # fmt: skip


def test_many_acks_leave_before_their_time_in_requests_of_a_bounded_size() -> None:
    """No request names more receipts than an agent takes."""
    ledger = Ledger()
    answer = received(ledger, 2 * ACTS_MAX + 2)
    taken(ledger, 2 * ACTS_MAX + 2)
    ledger.say(answer, range(FLUSH_ACKS - 1), ACK, 0)
    assert ledger.due(1) == []
    ledger.say(answer, range(FLUSH_ACKS - 1, 2 * ACTS_MAX + 1), ACK, 1)
    requests = ledger.due(1)
    assert [len(one.receipts) for one in requests] == [ACTS_MAX, ACTS_MAX, 1]
    assert sum(len(rows) for one in requests for _, rows, _ in one.parts) == 2 * ACTS_MAX + 1


def test_a_word_without_an_answer_is_said_again() -> None:
    """It keeps its receipts, and knows that it may have happened."""
    ledger = Ledger()
    answer = received(ledger, 2)
    taken(ledger, 2)
    ledger.say(answer, [0, 1], ACK, 0)
    (request,) = ledger.due(0, everything=True)
    ledger.repeat(request, again=True)
    (again,) = ledger.due(0)
    assert (again.receipts, again.again) == (request.receipts, True)
    assert ledger.unconfirmed == 2
    ledger.confirm(again)
    assert ledger.unconfirmed == 0


def test_only_what_was_not_heard_is_said_again() -> None:
    """A partition without a leader holds up its own receipts alone, whole ones and single ones."""
    ledger = Ledger()
    whole = received(ledger, 3)
    single = received(ledger, 3, delivery=2, partition=1)
    taken(ledger, 6)
    ledger.say(whole, [0, 1, 2], ACK, 0)
    ledger.say(single, [0, 2], ACK, 0)
    (request,) = ledger.due(0, everything=True)
    heard, left = request.split({single.receipts([2])[0]})
    assert (heard.receipts, left.receipts) == ([whole.receipt, *single.receipts([0])], single.receipts([2]))
    heard, left = request.split({whole.receipt})
    assert (heard.receipts, left.receipts) == (single.receipts([0, 2])[:2], [whole.receipt])
    heard, left = request.split(())
    assert (heard.receipts, left.parts) == (request.receipts, ())


def test_the_first_word_about_a_message_counts() -> None:
    """A second one, of an interrupted thread, changes nothing."""
    ledger = Ledger()
    answer = received(ledger, 1)
    taken(ledger, 1)
    ledger.say(answer, [0], ACK, 0)
    ledger.say(answer, [0], NACK, 0)
    (request,) = ledger.due(0, everything=True)
    assert request.word == ACK
    ledger.check_invariants()


def test_a_lease_is_extended_at_its_half_while_messages_are_in_hand() -> None:
    """And again from the moment at which the extension left."""
    ledger = Ledger()
    answer = received(ledger, 2)
    taken(ledger, 2)
    assert ledger.look(LEASE_MS // 2 - 1) == []
    assert ledger.deadline_ms() == LEASE_MS // 2
    assert ledger.look(LEASE_MS // 2) == [answer]
    ledger.extended(answer, LEASE_MS // 2)
    assert ledger.deadline_ms() == LEASE_MS
    assert ledger.look(LEASE_MS) == [answer]
    assert ledger.look(LEASE_MS) == []  # its answer is awaited
    ledger.say(answer, [0, 1], ACK, LEASE_MS)
    assert ledger.look(2 * LEASE_MS) == []


def test_unbegun_messages_behind_a_slow_one_are_released_and_the_slow_one_is_held() -> None:
    """Half a lease without a begun message is long enough; where some are begun, the others wait on."""
    ledger = Ledger()
    slow = received(ledger, 5)
    taken(ledger, 1)
    assert ledger.look(LEASE_MS // 2) == [slow]
    ledger.extended(slow, LEASE_MS // 2)
    assert len(slow.ready) == 4  # one was begun since they came
    assert ledger.look(LEASE_MS) == [slow]
    (request,) = ledger.due(LEASE_MS)
    assert (request.word, offsets(request)) == (RELEASE, [101, 102, 103, 104])
    assert take(ledger, LEASE_MS) is None


def test_unbegun_messages_wait_while_others_are_begun() -> None:
    """Progress in the answer before counts for the one behind it."""
    ledger = Ledger()
    first = received(ledger, 10)
    taken(ledger, 2)
    second = received(ledger, 10, delivery=2, now_ms=1_000)
    taken(ledger, 2)
    assert ledger.look(1_000 + LEASE_MS // 2) == [first, second]
    assert len(second.ready) == 10
    ledger.extended(first, 16_000)
    ledger.extended(second, 16_000)
    assert ledger.look(31_000) == [first]  # the second has nothing in hand, and was released
    assert not second.ready


def test_nothing_is_taken_whose_lease_is_over() -> None:
    """As after a laptop slept: the messages are somebody else's by now."""
    ledger = Ledger()
    answer = received(ledger, 3)
    assert take(ledger, 0) == (answer, 0)
    assert take(ledger, LEASE_MS) is None
    ledger.look(LEASE_MS)
    assert not answer.ready
    ledger.extended(answer, LEASE_MS)  # the one in hand was still ours
    ledger.say(answer, [0], ACK, LEASE_MS + 1)
    assert {one.word.kind for one in ledger.due(LEASE_MS + 1, everything=True)} == {"ack", "release"}


def test_a_lost_lease_gives_nothing_more_and_is_not_extended() -> None:
    """The leader refused: the word about the message in hand is still said."""
    ledger = Ledger()
    answer = received(ledger, 3)
    taken(ledger, 1)
    ledger.lost(answer)
    assert take(ledger, 1) is None
    assert ledger.look(10 * LEASE_MS) == []
    ledger.say(answer, [0], ACK, 1)
    for request in ledger.due(1, everything=True):
        ledger.confirm(request)
    assert not ledger.answers
    assert ledger.deadline_ms() is None


def test_no_message_is_held_for_ever() -> None:
    """What hangs over a message for half a day loses it."""
    ledger = Ledger()
    answer = received(ledger, 1)
    taken(ledger, 1)
    now_ms, extensions = 0, 0
    while (deadline_ms := ledger.deadline_ms()) is not None:
        now_ms = deadline_ms
        for held in ledger.look(now_ms):
            ledger.extended(held, now_ms)
            extensions += 1
    assert EXTENDED_MAX_MS - LEASE_MS <= now_ms <= EXTENDED_MAX_MS + LEASE_MS
    assert extensions > 1_000
    assert answer in ledger.answers


def test_a_nack_in_an_exclusive_group_releases_all_behind_it_in_its_partition() -> None:
    """Other partitions go on."""
    ledger = Ledger(MessageOrder.EXCLUSIVE)
    answer = received(ledger, 4)
    later = received(ledger, 2, delivery=2)
    other = received(ledger, 2, delivery=3, partition=1)
    taken(ledger, 2)
    ledger.say(answer, [0], ACK, 0)
    ledger.say(answer, [1], NACK, 0)
    assert (len(answer.ready), len(later.ready), len(other.ready)) == (0, 0, 2)
    assert take(ledger, 0) == (other, 0)
    assert ledger.turns == 1


def test_a_nack_in_a_key_ordered_group_releases_its_key_behind_it() -> None:
    """Messages of other keys, and without one, stay."""
    ledger = Ledger(MessageOrder.KEY_ORDERED)
    answer = received(ledger, 6, keys=b"aab-a-")
    later = received(ledger, 2, delivery=2, keys=b"ba")
    taken(ledger, 1)
    ledger.say(answer, [0], NACK, 0)
    assert list(answer.ready) == [2, 3, 5]
    assert list(later.ready) == [0]
    null = Ledger(MessageOrder.KEY_ORDERED)
    answer = received(null, 2, keys=b"--")
    taken(null, 1)
    null.say(answer, [0], NACK, 0)
    assert list(answer.ready) == [1]


def test_a_message_that_reached_nobody_comes_first_again() -> None:
    """Also where it was the last of its answer."""
    ledger = Ledger()
    answer = received(ledger, 1)
    received(ledger, 1, delivery=2)
    assert take(ledger, 0) == (answer, 0)
    assert take(ledger, 0) is not None
    ledger.give_back(answer, [0])
    assert take(ledger, 0) == (answer, 0)
    assert take(ledger, 0) is None
    ledger.check_invariants()


def test_a_row_that_was_nearly_taken_stays_where_it_is() -> None:
    """An interrupt before the last step; and one that was released between the two is not given."""
    ledger = Ledger()
    answer = received(ledger, 3)
    found = ledger.first(0)
    assert found == (answer, 0)
    ledger.give_back(answer, [0, 1])
    assert list(answer.ready) == [0, 1, 2]
    answer.ready.remove(0)  # as a release does
    assert not ledger.take(*found)
    assert list(answer.ready) == [1, 2]
    answer.ready.clear()
    assert not ledger.take(answer, 1)


def test_a_longer_visibility_is_asked_for_at_once() -> None:
    """And at every extension after it."""
    ledger = Ledger()
    answer = received(ledger, 1)
    taken(ledger, 1)
    ledger.say(answer, [0], Word("extend", 600_000), 10)
    assert ledger.look(10) == [answer]
    assert answer.lease_ms == 600_000
    ledger.extended(answer, 10)
    assert ledger.deadline_ms() == 300_010


def test_pieces_give_offsets_due_times_and_attempts() -> None:
    """Receipts of single messages name the due time, too."""
    answer = HeldAnswer(
        head(1), 0, [MessagePiece(17, 2, 1), MessagePiece(30, 1, 3), MessagePiece(5, 2, 1, 99)]
    )
    assert [answer.piece_of(row)[1] for row in range(5)] == [17, 18, 30, 5, 6]
    assert [answer.piece_of(row)[0].attempt for row in range(5)] == [1, 1, 3, 1, 1]
    assert [parse(text)[4:] for text in answer.receipts([1, 2, 4])] == [(18, 0), (30, 0), (6, 99)]


@pytest.mark.parametrize("order", list(MessageOrder))
@pytest.mark.parametrize("seed", range(20))
def test_random_lives_lose_nothing_and_name_nothing_twice(order: MessageOrder, seed: int) -> None:
    """Every row of every answer is named by confirmed requests: once, by its last word; and a whole receipt
    only where each other row of its answer was confirmed before."""
    rng = random.Random(seed)
    ledger = Ledger(order)
    in_hand: list[tuple[HeldAnswer, int]] = []
    unsure: list[ActRequest] = []
    words: dict[tuple[HeldAnswer, int], str] = {}
    confirmed: dict[tuple[HeldAnswer, int], str] = {}
    answers: list[HeldAnswer] = []
    now_ms = 0

    def settle(request: ActRequest) -> None:
        if rng.random() < 0.2:
            unsure.append(request)
            return
        for answer, rows, _ in request.parts:
            for row in rows:
                assert confirmed.setdefault((answer, row), request.word.kind) == request.word.kind
                assert words.get((answer, row), "release") == request.word.kind
        heads = {parse(text).delivery for text in request.receipts if parse(text).offset is None}
        for answer, rows, _ in request.parts:
            if parse(answer.receipt).delivery in heads:
                others = set(range(answer.rows)) - set(rows)
                assert all((answer, row) in confirmed for row in others)
        ledger.confirm(request)

    for _ in range(400):
        now_ms += rng.choice((0, 1, 20, 90, 400, 9_000 if rng.random() < 0.1 else 0))
        choice = rng.random()
        if choice < 0.15 and len(answers) < 30:
            keys = bytes(rng.choice(b"abc-") for _ in range(rng.randrange(1, 12)))
            place = {"delivery": len(answers) + 1, "partition": rng.randrange(2)}
            answers.append(received(ledger, len(keys), now_ms=now_ms, keys=keys, **place))
        elif choice < 0.55 and (found := take(ledger, now_ms)) is not None:
            if rng.random() < 0.1:
                ledger.give_back(found[0], [found[1]])
            else:
                in_hand.append(found)
        elif choice < 0.8 and in_hand:
            answer, row = in_hand.pop(rng.randrange(len(in_hand)))
            word = rng.choice((ACK, ACK, ACK, NACK, RELEASE, Word("reject")))
            words[answer, row] = word.kind
            ledger.say(answer, [row], word, now_ms)
        elif choice < 0.85 and (ride := ledger.riding(now_ms)) is not None:
            settle(ride)
        else:
            for request in ledger.due(now_ms):
                settle(request)
            for held in ledger.look(now_ms):
                if rng.random() < 0.05:
                    ledger.lost(held)
                elif rng.random() < 0.9:
                    ledger.extended(held, now_ms)
            while unsure:
                ledger.repeat(unsure.pop(), again=True)
        ledger.check_invariants()
    for answer, row in in_hand:
        words[answer, row] = "ack"
        ledger.say(answer, [row], ACK, now_ms)
    ledger.release_unbegun()
    while ledger.answers:
        while unsure:
            ledger.repeat(unsure.pop(), again=True)
        for request in ledger.due(now_ms, everything=True):
            settle(request)
    assert set(confirmed) == {(answer, row) for answer in answers for row in range(answer.rows)}
