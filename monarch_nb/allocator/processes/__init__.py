"""The processes of a node: templates, ranks, scripts, stores and what they start.

specs       what each is to be: its variables, as torchrun sets them, its record, and what its template is told
templates   starts, adopts and ends templates
forking     forks processes, a mesh's ranks with all that a mesh needs, and fresh ranks in the places of others
stores      forks the torch.distributed store of a mesh or script, and another one when it dies
scripts     begins, interrupts and ends the processes of scripts
supervisor  starts, adopts, watches and ends ranks and stores
links       the connections to them
grace       what ranks and scripts may do before the end: saves that are armed, and signals
processes   who they are, how they ended, and how to end them with all that they started
"""
