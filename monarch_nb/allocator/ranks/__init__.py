"""The processes of ranks and scripts: what they are to be, how they are made and replaced.

environment  their variables, as torchrun sets them
specs        the record of each, and what its template is told
forking      forks them, and a mesh's ranks with all that a mesh needs
stores       forks the torch.distributed store of a mesh or script, and another one when it dies
restarts     puts fresh ranks in the places of others
scripts      begins, interrupts and ends the processes of scripts
signals      who stands the signals of an engine
"""
