"""The faults of rule 20, sorted views."""

# ruff: noqa: E501 -- lines of the product, as they stand there

from __future__ import annotations

from tests.safety.fault import A, Fault

VIEW_FAULTS: tuple[Fault, ...] = (
    Fault(
        20,
        "the log goes before a run that has its records is on the disk",
        "agent/views/view.py",
        "            lambda: self.saved.offset,\n",
        "            lambda: self.applied.offset,\n",
        (A + "views/test_timer_view.py::test_the_log_goes_only_as_far_as_runs_are_saved",),
    ),
    Fault(
        20,
        "the manifest names a run that is not synced",
        "agent/views/run_writer.py",
        "        await self._file.sync()\n",
        "",
        (A + "views/test_timer_view.py::test_a_crash_at_any_write_loses_nothing",),
    ),
    Fault(
        20,
        "a run is trusted without its checksum",
        "agent/views/run_reader.py",
        "        if len(data) != length or crc32c.crc32c(data, self._seed) != self.index.checksum(number):\n",
        "        if len(data) != length:\n",
        (A + "views/test_timer_view.py::test_a_damaged_run_is_made_again_from_the_log",),
    ),
    Fault(
        20,
        "rows are dropped at a merge",
        "agent/views/run_maker.py",
        "            self._left_over[number] = rows.slice(end)\n",
        "            self._left_over[number] = rows.slice(rows.num_rows)\n",
        (A + "views/test_timer_view.py::test_a_merge_in_many_pieces_keeps_every_row",),
    ),
    Fault(
        20,
        "a row goes when its retention has passed since the append",
        "agent/views/row_order.py",
        "        return rows.slice(self.position_of(rows, place_key(max(expired_us, 0), 0)))\n",
        "        return rows.slice(rows.num_rows) if expired_us > 0 else rows\n",
        (A + "views/test_timer_view.py::test_records_go_once_they_were_due_and_their_retention_is_over",),
    ),
    Fault(
        20,
        "a peer's bytes are believed",
        "agent/views/upkeep/shipment.py",
        "            await run.verify()\n",
        "",
        (A + "views/test_shipment.py::test_bytes_that_changed_on_the_way_count_for_nothing",),
    ),
    Fault(
        20,
        "a copy of the log is installed without the view before it",
        "agent/host/copy_target.py",
        "            reached = await self.views.copy_to(self._stores.side_directory(group), group, job.source)\n",
        "            reached = copy.start_offset\n",
        (A + "delivery/test_timers.py::test_a_replica_without_the_head_gets_the_view_and_then_the_log",),
    ),
    Fault(
        20,
        "the runs of a damaged view are read",
        "agent/views/view.py",
        '        if self.damage:\n            raise ViewNotReady(f"{self.files.directory} is being mended: {',
        '        if False:\n            raise ViewNotReady(f"{self.files.directory} is being mended: {',
        (A + "views/test_timer_view.py::test_a_damaged_run_waits_where_the_log_is_gone",),
    ),
    Fault(
        20,
        "a group passes records that its leader's view has yet to take",
        "agent/delivery/view_feed.py",
        "        return min(now, DuePlace(view.applied_us, view.applied.offset))\n",
        "        return now\n",
        (A + "delivery/test_timers.py::test_no_record_that_the_view_has_yet_to_take_is_passed",),
    ),
    Fault(
        20,
        "a file of a merged run goes while it is read",
        "agent/views/view.py",
        "        for run in [run for run in self._retired if run not in self._pins]:\n",
        "        for run in list(self._retired):\n",
        (A + "views/test_timer_view.py::test_a_reader_keeps_the_files_of_merged_runs",),
    ),
)
