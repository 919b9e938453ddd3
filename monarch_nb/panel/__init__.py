"""What the panel and the widget show and do, as plain JSON values: no Jupyter, no HTTP.

requests  a panel for each pool that somebody looks at; the one entry of each: requests by name
actions   what is done: reserve, release, resize, restart, interrupt, stacks
shown     what nodes said becomes the one value that is shown
forms     what is asked of people before something is done
ways      engines that can be asked for nodes, as a part of the form
jobs      what takes long, in threads, with progress and cancel
live      asks the nodes while somebody looks, and tells subscribers what changed; which pools can be shown
logs      windows over the logs of a mesh: folded, filtered, searched, followed
refusal   why a request is not done, and advice of the client's, in terms of what to click
"""
