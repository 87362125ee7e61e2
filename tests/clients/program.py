"""What somebody writes who has a client made by openapi-python-client: run in the generator's environment,
against an agent. Arguments: the agent's URL."""

import io
import sys

from shoal_client import Client
from shoal_client.api.records import produce, produce_to_partition, read_merged, read_partition
from shoal_client.api.topics import change_topic, create_topic, delete_topic, describe_topic, list_topics
from shoal_client.models import (
    Appended,
    NewRecord,
    NewRecords,
    Problem,
    ProblemCode,
    ProduceAcks,
    Retention,
    Taken,
    Topic,
    TopicChanges,
    TopicSettings,
)
from shoal_client.types import File

client = Client(base_url=sys.argv[1])
settings = TopicSettings(partitions=2, replication_factor=1, retention=Retention(age="7d"))
made = create_topic.sync(client=client, topic="made", body=settings)
assert isinstance(made, Topic)
assert made.settings.partitions == 2
assert list_topics.sync(client=client).topics[0].replication_factor == 1

records = NewRecords(records=[NewRecord(key="k", value={"a": 1}), NewRecord(value="text", timestamp=1_000)])
stored = produce.sync(client=client, topic="made", body=records)
assert isinstance(stored, Appended)
assert stored.count == 2
taken = produce_to_partition.sync(
    client=client,
    topic="made",
    partition=1,
    body=NewRecords([NewRecord(value="last")]),
    acks=ProduceAcks.NONE,
)
assert isinstance(taken, Taken)
assert taken.count == 1

raw = File(payload=io.BytesIO(b"\xff raw"), mime_type="application/octet-stream")
assert produce_to_partition.sync(client=client, topic="made", partition=0, body=raw).count == 1

read = [read_partition.sync(client=client, topic="made", partition=number).records for number in range(2)]
assert {record.value for page in read for record in page} >= {"text", '{"a":1}'}
merged = read_merged.sync(client=client, topic="made").records
assert [record.timestamp.year for record in merged if record.value == "text"] == [1970]

changes = TopicChanges(retention=Retention(age="1d"))
assert change_topic.sync(client=client, topic="made", body=changes).settings.retention.age == "1d"
assert delete_topic.sync_detailed(client=client, topic="made").status_code == 204
gone = describe_topic.sync(client=client, topic="made")
assert isinstance(gone, Problem)
assert gone.code is ProblemCode.UNKNOWN_TOPIC
assert gone.definite
print("used")
