# An exception group that nobody handles.
raise ExceptionGroup("two shards", [ValueError("shard 1"), ExceptionGroup("rest", [KeyError("shard 2")])])
