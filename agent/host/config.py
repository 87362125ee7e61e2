"""How a host runs its replicas.

Law of this file: values only.
"""

from dataclasses import dataclass, field

from shoal.agent.delivery.letter_sender import LetterBox
from shoal.agent.groups.news import News, TellNews
from shoal.agent.metrics.measures import Measures
from shoal.replication.config import RaftConfig

RETENTION_INTERVAL_MS = 5_000
"""Ages are at least a second, segments seldom filled faster than that."""


def tell_nobody(_partition: object, _group: str, _news: News) -> None:
    """Where nobody listens to events of groups."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`power_held`: since this agent last ran, so its failure tore no write. `letters`: the way of dead
    letters. `tell_news`: of consumer groups."""

    raft: RaftConfig
    retention_interval_ms: int = RETENTION_INTERVAL_MS
    power_held: bool = False
    measures: Measures = field(default_factory=Measures)
    letters: LetterBox = field(default_factory=LetterBox)
    tell_news: TellNews = tell_nobody
