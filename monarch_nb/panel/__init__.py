"""What the panel and the widget show and do, as plain JSON values: no Jupyter, no HTTP.

panels    one for each pool that somebody looks at
requests  the one entry of each: requests by name
actions   what is done: reserve, release, resize, restart, interrupt, stacks
shown     what nodes said becomes the one value that is shown
forms     what is asked of people before something is done
jobs      what takes long, in threads, with progress and cancel
live      asks the nodes while somebody looks, and tells subscribers what changed
logs      windows over the logs of a mesh: folded, filtered, searched, followed
pools     which pools can be shown
refusal   why a request is not done
hints     advice of the client's, in terms of what to click
"""
