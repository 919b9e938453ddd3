"""What a node runs for a mesh: the template that forks, and the ranks that it forks. Never imports gRPC.

template            the process of a node that imports torch and IPython once, and forks ranks
rank                a forked child that runs cells for ever, or one script
control/            what a rank answers while its main thread is busy or stuck: interrupts, stacks, Tab
debug/              threads that have stopped at breakpoint(), and the pdb of each
mail                messages of actors, to and from other processes
monarch/            Monarch's own engine, for who asks for it
runs/               what a run brings and leaves: a cell's body, a script, values, results
instruments/        what looks inside while a run goes on
memory              which tensors hold the memory of a rank
comparing           what is said of a value so that ranks can be compared
autosaves/          what ranks save by themselves, between two steps of a training
saving/             what ranks hold goes to disk and comes back
become_rank         what a forked child changes: environment, seeds, device, what libraries are told that ask
reload              modules of the user's whose files changed are executed again
shell/              the IPython shell of a rank: what is compiled, printed, raised
groups/             process groups that can be formed, broken from outside and formed again
steps               steps of optimizers: what counts as one, noticing it, training without any process group
digests             the contents of a tensor in a few bytes, made where the tensor is
environment_report  what %mesh doctor compares: Python, packages, the machine
torch_names         private names of torch, and what is off without them
pip                 %mesh pip
imports             sys.path of a forked process, patching what may never be imported, variables set too late for it
run_secret          what a client tells the ranks of a run beside its code
user_code           which stack frames are the user's
"""
