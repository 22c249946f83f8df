"""Alerts on training runs, and on the exporter itself."""

from __future__ import annotations

from typing import Final

from dashboards.alerts.model import Alert, Recording

EXPORTER_ALERTS: Final = (
    Alert(
        "ScopeExporterStale",
        "scope-exporter",
        # The age that the exporter measures itself: a node whose clock is wrong is not blind.
        "scope_exporter_sample_age_seconds > $stale_after",
        "2m",
        "critical",
        "{{ $labels.instance }} has not been read for {{ $value | humanizeDuration }}",
        "The exporter answers, but its figures are old.",
        "A call of the driver or kernel hangs; scope_exporter_sampler_stuck is 1 when it cannot even be killed.",
        "Look for processes in state D on the node; drain and reboot it.",
    ),
    Alert(
        "ScopeExporterDown",
        "scope-exporter",
        # Whatever its job is called, a target that ever gave this series is one of ours; of one that never answered
        # the name of its job must tell.
        "up == 0 and on (cluster, job, instance) scope:exporter:last_timestamp "
        'or up{job=~"(.+[-_/])?scope([-_/].+)?"} == 0 '
        "or scope:exporter:last_timestamp > time() - $remember_target unless on (cluster, job, instance) up",
        "5m",
        "warning",
        "The exporter of {{ $labels.instance }} does not answer",
        "Prometheus cannot scrape it, or service discovery no longer names it.",
        "The node, its network or the exporter is down. Service discovery may forget a node, as Kubernetes does with "
        "one whose pod or node object is gone; its exporter is missed for the time of setting remember_target (1 day "
        "by default). One that never answered is known by its job alone, when that is called scope, scope-exporter or "
        "monitoring/scope.",
        "systemctl status scope-exporter on the node, or kubectl -n scope get pods -o wide. Where a node was taken "
        "out, or its job renamed, on purpose: silence it, or lower remember_target.",
    ),
    Alert(
        "ScopeCollectorDown",
        "scope-exporter",
        "scope_collector_up == 0",
        "10m",
        "warning",
        "Collector {{ $labels.collector }} of {{ $labels.instance }} gives nothing",
        "Its figures are missing or old.",
        "The hardware or file that it reads is gone, forbidden or set aside after a hang.",
        "scope_exporter_sample_errors_total names the kind of error, the exporter's log the place. Where a node has no "
        "such hardware, switch the collector off (--disable).",
    ),
    Alert(
        "ScopeSampleSlow",
        "scope-exporter",
        "sum by (cluster, job, instance) (scope_exporter_sample_duration_seconds) > $slow_sample",
        "10m",
        "warning",
        "Reading {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
        "A healthy node needs milliseconds.",
        "The driver is slow to answer, which often comes before it hangs.",
        "As for ScopeExporterStale.",
    ),
)

TRAINING_ALERTS: Final = (
    Alert(
        "ScopeStepStalled",
        "scope-training",
        "time() - scope_train_last_step_timestamp_seconds "
        "> clamp_min($stall_factor * scope_train_step_median_seconds, $stall_seconds) and scope_train_active == 1",
        "1m",
        "critical",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} makes no steps",
        "The last step ended {{ $value | humanizeDuration }} ago.",
        "The run hangs, or does something that is no step (a long checkpoint or evaluation).",
        "scope watch RUN says which collective hangs and which rank never came. NCCL's own watchdog waits ten minutes.",
    ),
    Alert(
        "ScopeFirstStepLate",
        "scope-training",
        'scope_train_heartbeat_age_seconds{thread="training"} > $startup_seconds '
        "and on (cluster, job, instance, run, rank) scope_train_steps_total == 0 "
        "and on (cluster, job, instance, run, rank) scope_train_active == 1",
        "1m",
        "critical",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} has not made its first step",
        "Its main thread gave its last sign of life {{ $value | humanizeDuration }} ago, and no step of this attempt "
        "has ended.",
        "The attempt hangs in its start-up (a rendezvous, the loading of a checkpoint, a first collective that a rank "
        "never joins) or within its first step. Start-up may be long, with compilation or a large checkpoint: setting "
        "startup_seconds is how long it may stand still.",
        "scope watch RUN says in which phase and collective it stands. Where start-up really takes longer, raise "
        "startup_seconds.",
    ),
    Alert(
        "ScopeRankSilent",
        "scope-training",
        'scope_train_heartbeat_age_seconds{thread="recorder"} > $heartbeat '
        "and on (cluster, job, instance, run, rank) scope_train_active == 1",
        "1m",
        "critical",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} gives no sign of life",
        "Its last heartbeat is {{ $value | humanizeDuration }} old.",
        "The process is stopped, swapped out, or dead without having been noticed.",
        "Look at the process on {{ $labels.instance }}; scope watch RUN tells what it did last.",
    ),
    Alert(
        "ScopeRankLost",
        "scope-training",
        # Peers are ranks of the same attempt, on whatever node: a rank that was started anew has left the old one.
        "(scope_train_lost_seconds > $lost_after) "
        "* on (cluster, job, instance, run, rank) group_left (attempt) scope_train_info "
        "and on (cluster, run, attempt) "
        "(scope_train_active == 1) * on (cluster, job, instance, run, rank) group_left (attempt) scope_train_info",
        "30s",
        "critical",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} is gone while others of it run",
        "Its last sign of life was {{ $value | humanizeDuration }} ago, and it told of no end; its peers wait for it.",
        "The process was killed (by the kernel for memory, by hand, by a driver) or crashed beyond any handler. A rank "
        "that ended in order, a run that ends as a whole and an attempt that was started anew are not meant.",
        "Look for its end in the node's kernel log (ScopeOomKill); scope show RUN tells what it did last. The others "
        "stand in their next collective until its timeout: end the job or let the launcher start it anew.",
    ),
    Alert(
        "ScopeStepRegression",
        "scope-training",
        "max by (cluster, run) (scope_train_step_median_seconds) > "
        "$regression * min_over_time(scope:train_step_median:hour[${regression_window}s])",
        "10m",
        "warning",
        "Steps of run {{ $labels.run }} became slower",
        "A step takes {{ $value | humanizeDuration }} now, more than setting regression allows over the fastest hour.",
        "Something changed: a throttled GPU, a slow link or mount, or the input. The median is compared with the "
        "fastest hour within the time of setting regression_window (a day by default), so the alert stays as long as "
        "steps are slow, at most that long after the last fast hour. A run is judged once it has made steps for a "
        "quarter of an hour.",
        "scope compare the last captures; look at throttling and links of the slowest rank. A new attempt on fewer "
        "ranks, or with longer sequences, is slower for good reason: silence it for that run.",
    ),
    Alert(
        "ScopeStragglerRank",
        "scope-training",
        "scope:train_own_time:ratio > on (cluster, run, peers) group_left () "
        "$straggler * quantile by (cluster, run, peers) (0.5, scope:train_own_time:ratio) "
        # In a hang the steps before it, which the ratio goes on to show for minutes, blame nobody. By the sample's own
        # time, however rarely the exporter is asked.
        "unless on (cluster, run) (timestamp(scope_train_last_step_timestamp_seconds) "
        "- scope_train_last_step_timestamp_seconds "
        "> clamp_min($stall_factor * scope_train_step_median_seconds, $still_seconds) and scope_train_active == 1)",
        "10m",
        "warning",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} works longer than the others",
        "It is busy {{ $value | humanizePercentage }} of the time without waiting, well above the median of its peers.",
        "All ranks share the step's length, so the slow one is the one that waits least for the others. Its peers are "
        "the ranks at the same place of every axis but data parallel (label peers); pipeline stages are not compared. "
        "While a rank of the run makes no step for setting still_seconds (a minute) and ten usual steps, nobody is "
        "named: that is a hang, which ScopeStepStalled and ScopeVerdict tell of.",
        "Compare its phases with a peer's on the Ranks page: forward and backward mean the GPU, input means data.",
    ),
    Alert(
        "ScopeImposedWait",
        "scope-training",
        # Every node of the run tells the same findings.
        "max by (cluster, run, rank) (scope_train_imposed_wait_ratio) > $imposed_wait",
        "10m",
        "warning",
        "Rank {{ $labels.rank }} of run {{ $labels.run }} makes the others wait",
        "All others wait for it {{ $value | humanizePercentage }} of the step.",
        "What fixing that rank alone would save. Only a run that scope watch follows has this figure. "
        "It is told until a quarter of an hour after the last look.",
        "See its reason in scope watch RUN or on the Ranks page.",
    ),
    Alert(
        "ScopeVerdict",
        "scope-training",
        # Every node of the run tells the same findings.
        'max by (cluster, run, rank, kind, severity) (scope_train_verdict{severity="critical"}) == 1',
        "0s",
        "critical",
        "Run {{ $labels.run }}: {{ $labels.kind }}",
        "Diagnosis over all ranks blames rank {{ $labels.rank }}.",
        "scope watch, which runs beside the job (once a run, where its run directory can be seen), found a hang, a "
        "mismatch of collectives or a crash. Without it this alert is silent; of a live run a finding is told until a "
        "quarter of an hour after the last look, and of a hang until its step ends.",
        "scope watch RUN prints the whole verdict.",
    ),
    Alert(
        "ScopeCommunicationBusyWait",
        "scope-training",
        "scope_gpu_utilization_ratio > 0.95 and scope_gpu_power_watts / scope_gpu_power_limit_watts < $wait_power",
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} looks busy and draws little power",
        "A kernel is resident all the time and the GPU does next to nothing.",
        "A collective kernel spins and waits for a rank that does not come.",
        "scope watch RUN; compare ScopeStepStalled.",
    ),
    Alert(
        "ScopeIdleAllocated",
        "scope-training",
        "max by (cluster, job, instance, gpu, uuid) (max_over_time(scope_gpu_sm_active_ratio[5m])) < $idle_sm "
        "and on (cluster, job, instance, uuid) last_over_time(scope_gpu_job_info[5m])",
        "30m",
        "info",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is allocated and idle",
        "Its multiprocessors work {{ $value | humanizePercentage }} of the time.",
        "A job holds the GPU and does not use it.",
        "Ask its owner (scope_gpu_job_info names the job).",
    ),
    Alert(
        "ScopeDataloaderBound",
        "scope-training",
        "scope:train_input_cost:ratio > $input_share",
        "10m",
        "warning",
        "Waiting for data costs run {{ $labels.run }} {{ $value | humanizePercentage }} of its steps",
        "That is what its steps would be shorter by if no rank waited for data.",
        "The figure is the one by which scope show, scope watch and the Overview call a run bound by its input: the "
        "longest work of the ranks that wait for each other (label peers; work is a step without its wait in "
        "communication), less their longest work without input. Input that a rank waits for while its peers work "
        "longer costs nothing, nor does what a loader waits in communication. Here it is worked out of the means of "
        "five minutes, which know the steps neither one by one nor without those that a profiler window disturbed; "
        "where the wait of a rank is not wholly seen it is the longest input of its peers, as there.",
        "scope show RUN names the ranks whose data is waited for. More loader workers, prefetching, or a faster mount "
        "(ScopeNfsQueue).",
    ),
    Alert(
        "ScopeGoodputLow",
        "scope-training",
        "min by (cluster, run) (scope_train_goodput_ratio) < $goodput "
        "and count by (cluster, run) (scope_train_active == 1) > 0",
        "1h",
        "info",
        "Goodput of run {{ $labels.run }} is {{ $value | humanizePercentage }}",
        "The rest went to start-up, restarts, stalls and steps that were lost.",
        "Restarts and stalls cost more than they should.",
        "scope show RUN lists the attempts and what ended them.",
    ),
)

RECORDINGS: Final = (
    Recording(
        "scope:gpus:count",
        "count by (cluster, job, instance) (scope_gpu_info)",
        "GPUs that a node shows, also lost ones.",
    ),
    Recording(
        "scope:exporter:last_timestamp",
        "max by (cluster, job, instance) (time() + 0 * scope_exporter_build_info) "
        "or last_over_time(scope:exporter:last_timestamp[1h]) > time() - $remember",
        "When an exporter last answered, for as long as that is remembered.",
    ),
    Recording(
        "scope:nvlink_up:last_timestamp",
        # It reads itself: a range over raw samples of so many links and days would cost far more.
        # By uuid: a reboot may give a GPU another index, and a new pod of the exporter other labels.
        "max by (cluster, job, instance, uuid, link) (time() + 0 * (scope_nvlink_up == 1)) "
        "or last_over_time(scope:nvlink_up:last_timestamp[1h]) > time() - $remember",
        "When a link was last up, for as long as that is remembered.",
    ),
    Recording(
        "scope:rdma_port_active:last_timestamp",
        "max by (cluster, job, instance, device, port) (time() + 0 * (scope_rdma_port_state >= 4)) "
        "or last_over_time(scope:rdma_port_active:last_timestamp[1h]) > time() - $remember",
        "When a port was last active, for as long as that is remembered.",
    ),
    Recording(
        "scope:train_step_median:hour",
        "max by (cluster, run) (avg_over_time(scope_train_step_median_seconds[1h]) "
        "and scope_train_step_median_seconds offset 15m)",
        "Mean of the step's median over the last hour, of the slowest rank, once there is a quarter of an hour.",
    ),
    Recording(
        "scope:train_own_time:ratio",
        "(rate(scope_train_step_seconds_total[5m]) - rate(scope_train_communication_wait_seconds_total[5m])) "
        "/ (rate(scope_train_step_seconds_total[5m]) > 0) "
        "* on (cluster, job, instance, run, rank) group_left (peers) scope_train_info",
        "Share of a rank's step time that it does not wait for others.",
    ),
    Recording(
        "scope:train_input:ratio",
        # A rank that never waited has no such phase; it is a peer all the same.
        '(clamp_min(rate(scope_train_phase_seconds_total{phase="input"}[5m]) '
        '- (rate(scope_train_communication_wait_phase_seconds_total{phase="input"}[5m]) '
        'or 0 * rate(scope_train_phase_seconds_total{phase="input"}[5m])), 0) '
        "/ ignoring (phase) (rate(scope_train_step_seconds_total[5m]) > 0) "
        "or 0 * (rate(scope_train_step_seconds_total[5m]) > 0)) "
        "* on (cluster, job, instance, run, rank) group_left (peers) scope_train_info",
        "Share of a rank's step time that it waits for data; what its loader waits in communication is no such time.",
    ),
    Recording(
        "scope:train_input_cost:ratio",
        "max by (cluster, run) ("
        "max by (cluster, run, peers) (scope:train_own_time:ratio) "
        "- max by (cluster, run, peers) (scope:train_own_time:ratio - scope:train_input:ratio) "
        # Where the wait of a peer is not wholly known, any of them may be the one that works longest.
        "and on (cluster, run, peers) count by (cluster, run, peers) (scope:train_own_time:ratio) "
        "== count by (cluster, run, peers) (scope:train_input:ratio) "
        "unless on (cluster, run, peers) (min_over_time(scope_train_communication_wait_coverage_ratio[5m]) < 1) "
        "* on (cluster, job, instance, run, rank) group_left (peers) scope_train_info "
        "or max by (cluster, run, peers) (scope:train_input:ratio))",
        "What steps would be shorter by if no rank waited for data, over their length.",
    ),
    Recording(
        "scope:train_phase:ratio",
        "sum by (cluster, run, phase) (rate(scope_train_phase_seconds_total[5m])) "
        "/ on (cluster, run) group_left () sum by (cluster, run) (rate(scope_train_step_seconds_total[5m]))",
        "Share of the step by phase.",
    ),
    Recording(
        "scope:train_tokens:rate",
        # A rank that two jobs scrape, or that moved to another node, is one rank.
        "sum by (cluster, run) (max by (cluster, run, rank) (rate(scope_train_tokens_total[5m])))",
        "Tokens a second of the whole run.",
    ),
    Recording(
        "scope:train_collective_bytes:rate",
        "sum by (cluster, run, operation, axis) "
        "(max by (cluster, run, rank, operation, axis) (rate(scope_train_collective_bytes_total[5m])))",
        "Bytes a second that ranks gave to collectives.",
    ),
    Recording(
        "scope:nvlink_transmit:rate",
        'sum by (cluster, job, instance, gpu, uuid) (rate(scope_nvlink_transmit_bytes_total{layer="data"}[1m]))',
        "Payload a GPU sends over all its NVLinks, bytes a second.",
    ),
    Recording(
        "scope:nvlink_use:ratio",
        'rate(scope_nvlink_transmit_bytes_total{layer="raw"}[1m]) '
        "/ on (cluster, job, instance, gpu, uuid, link) group_left () scope_nvlink_speed_bytes_per_second",
        "Raw traffic of a link over its raw speed, one way.",
    ),
    Recording(
        "scope:rdma_transmit_use:ratio",
        "rate(scope_rdma_transmit_bytes_total[1m]) / scope_rdma_port_rate_bytes_per_second",
        "Traffic of a port over its rate, one way.",
    ),
    Recording(
        "scope:gpu_power:sum", "sum by (cluster, job, instance) (scope_gpu_power_watts)", "Power of a node's GPUs."
    ),
)
