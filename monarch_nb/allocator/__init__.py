"""The long-lived daemon of one node: leases slots, supervises ranks, routes runs, keeps logs. Never imports torch."""
