nav-status = Status
status-page-title = Status: how the network is doing now · MLX World
status-heading = Status
status-lead = How this coordinator and its network are doing. The figures are updated once a minute.
status-now-title = Now
status-at = As of { $time }. If that is long ago, the coordinator runs but cannot read its database.
status-up = Up since
status-macs = Macs
status-job = Last job settled
status-job-note = to the minute
status-job-none = None since the start
status-withheld = Not told yet
status-checkpoint = Last ledger checkpoint
status-entries = { $entries ->
    [one] { $entries } entry
   *[other] { $entries } entries
}
status-root = Its root, by which anybody can check the ledger:
status-look-title = Check for yourself
status-healthz = answers while the process runs.
status-readyz = answers while the database does.
status-snapshot = has all the map’s figures.
status-ledger = is the newest signed checkpoint.
status-limits-title = What this page cannot say
status-limits = It comes from the coordinator itself. If that is down, the page is too. There is no history of outages yet.
