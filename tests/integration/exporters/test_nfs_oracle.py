"""NFS figures against those that node_exporter reads from the same file."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters.compat_node import add_mountstats_names
from exporters.render import TEXT, Renderer
from exporters.series import SeriesSet
from scope.probe.nfs import parse_mountstats
from scope.probe.tree import Problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOUNTSTATS = """device rootfs mounted on / with fstype rootfs
device 192.168.1.1:/srv/test mounted on /mnt/nfs/test with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,hard,proto=tcp,port=0,timeo=600
\tage:\t13968
\tcaps:\tcaps=0xfff7,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffafff,bm1=0xf9be3e,bm2=0x0,acl=0x0,pnfs=not configured
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
\tbytes:\t1207640230 0 0 0 1210214218 77 295483 0
\tRPC iostats version: 1.0  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6427 3 12154 57 24 26 5726
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t        READ: 1298 1300 2 207680 1210292152 6 79386 79407
\t       WRITE: 17 17 0 1700 900 8 9 10
\t     GETATTR: 5 5 0 500 400 1 2 3
"""
FIGURES = {
    "node_mountstats_nfs_operations_requests_total": lambda o: o.requests,
    "node_mountstats_nfs_operations_transmissions_total": lambda o: o.transmissions,
    "node_mountstats_nfs_operations_major_timeouts_total": lambda o: o.major_timeouts,
    "node_mountstats_nfs_operations_sent_bytes_total": lambda o: o.sent_bytes,
    "node_mountstats_nfs_operations_received_bytes_total": lambda o: o.received_bytes,
    "node_mountstats_nfs_operations_queue_time_seconds_total": lambda o: o.queue_ns / 1e9,
    "node_mountstats_nfs_operations_response_time_seconds_total": lambda o: o.response_ns / 1e9,
    "node_mountstats_nfs_operations_request_time_seconds_total": lambda o: o.total_ns / 1e9,
}


@pytest.mark.system("prometheus-node-exporter")
def test_operations_equal_those_of_node_exporter(
    tmp_path: Path, free_port: Callable[[], int], fetch_page: Callable[[int, str], str]
) -> None:
    """Requests, retransmissions, timeouts, bytes, and the three times of each operation; backlog and bad replies."""
    (tmp_path / "1").mkdir()
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "1" / "mountstats").write_text(MOUNTSTATS)
    (tmp_path / "1" / "mountinfo").write_text(
        "194 192 0:42 / /mnt/nfs/test rw shared:144 - nfs4 192.168.1.1:/srv/test rw,vers=4.2,addr=192.168.1.1\n"
    )
    port = free_port()
    command = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.mountstats"]
    node = subprocess.Popen(
        [*command, f"--path.procfs={tmp_path}", f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        text = fetch_page(port, "/metrics")
    finally:
        node.terminate()
        node.wait(10)
    theirs = {
        (sample.name, sample.labels.get("operation", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("node_mountstats_nfs_")
    }
    (mount,) = parse_mountstats(MOUNTSTATS, Problems("nfs"))
    assert [operation.name for operation in mount.operations] == ["READ", "WRITE", "GETATTR"]
    for operation in mount.operations:
        for name, take in FIGURES.items():
            assert theirs[name, operation.name] == pytest.approx(take(operation)), (name, operation.name)
    series = SeriesSet()
    add_mountstats_names(series, [mount])
    ours = [
        sample for family in text_string_to_metric_families(Renderer(TEXT).render(series)) for sample in family.samples
    ]
    assert len(ours) == 7 + 8 * 3
    for sample in ours:
        assert {**sample.labels, "operation": ""} == {
            "export": "192.168.1.1:/srv/test", "protocol": "tcp", "operation": ""
        }  # fmt: skip
        assert sample.value == pytest.approx(theirs[sample.name, sample.labels.get("operation", "")]), sample
    assert theirs["node_mountstats_nfs_transport_backlog_queue_total", ""] == mount.backlog_cumulative == 57
    assert theirs["node_mountstats_nfs_transport_bad_transaction_ids_total", ""] == mount.bad_xids == 3
    assert theirs["node_mountstats_nfs_transport_sends_total", ""] == mount.requests_sent == 6_428
    assert theirs["node_mountstats_nfs_transport_maximum_rpc_slots", ""] == mount.max_slots == 24
    assert theirs["node_mountstats_nfs_total_read_bytes_total", ""] == mount.read_bytes == 1_210_214_218
    assert theirs["node_mountstats_nfs_total_write_bytes_total", ""] == mount.write_bytes == 77
