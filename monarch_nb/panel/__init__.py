"""What the panel and the widget show and do, as plain JSON values: no Jupyter, no HTTP.

panels    one for each pool that somebody looks at
requests  the one entry of each: requests by name
actions   what is done: reserve, release, resize, restart, interrupt, stacks
possible  what can not be done with a reservation as it is now, and why
resizing  what would become of a reservation with more nodes, or fewer
jobs      what takes long, in threads, with progress and cancel
live      asks the nodes while somebody looks, and tells subscribers what changed
view      what nodes said becomes the one value that is shown
changes   what of it browsers have to be told
actors    the actors of a reservation, in that value
notices   deaths and ends that people should hear of
hangs     ranks that wait for others that will not come
logs      windows over the logs of a mesh: folded, filtered, searched, followed
forms     what is asked of people, and the messages for each field
ways      engines that can be asked for nodes, as a part of the form
pools     which pools can be shown
refusal   why a request is not done
hints     advice of the client's, in terms of what to click
"""
