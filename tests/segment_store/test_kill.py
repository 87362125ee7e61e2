"""kill -9 at random moments: what was acknowledged is there when the log opens again."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_frames import SMALL, open_log

from shoal.segment_store import open_disk

KILLS = 5


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_acknowledged_frames_survive_kill_nine(kind: str, tmp_path: Path) -> None:
    """Five lives of one directory, each ended by SIGKILL, with every acknowledged frame counted after
    each."""
    rng = random.Random(kind)
    directory = str(tmp_path / "log")
    promised: dict[int, str] = {}
    child = str(Path(__file__).with_name("killed_child.py"))
    for life in range(KILLS):
        command = [sys.executable, child, directory, kind, str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(rng.uniform(0.01, 0.4))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        acknowledged = [line.split() for line in lines if line.endswith("\n")]
        assert acknowledged, "the child never appended"
        promised |= {int(words[0]): words[1] for words in acknowledged if len(words) == 2}
        promised |= {int(words[0]): "" for words in acknowledged if len(words) == 1}
        disk = await open_disk("threads")
        log = await open_log(disk, directory, SMALL)
        assert log.damage == ()
        held = {frame.stamp.index: frame.data[-200:].hex() async for frame in log.scan(log.first_index)}
        assert promised.items() <= held.items()
        await log.close()
        await disk.close()
