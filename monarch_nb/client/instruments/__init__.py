"""What looks inside while a run goes on, as the client asks for it.

asked              the instruments of a run, and what they found on its ranks
profiles           the profiles and memory histories of ranks come here: `Mesh.profile_of`
profile_report     what is said of a profile. Pure
profile_straggler  whom the profiled ranks waited for. Pure
late               who is late, of ranks that wait in collectives. Pure
compared           which run a cell with --compare-with is compared with
checking           whether a run can have what is asked for
clocks             how far the clocks of hosts are apart
merging            the traces of ranks become one file
"""
