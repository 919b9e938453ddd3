"""Which variables of a terminal a script has."""

from monarch_nb.client.scripts.script import passed_on

MINE = {"LR": "1", "WANDB_API_KEY": "x", "OMP_NUM_THREADS": "2", "TZ": "Asia/Tokyo", "PYTHONPATH": "/a", "RANKED": "1"}
MINE |= {"ROLE_ARN": "x", "GRPC_TRACE": "all", "GRPC_VERBOSITY": "DEBUG"}
OF_A_RANK = (
    "RANK",
    "LOCAL_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "TORCHELASTIC_RUN_ID",
    "PET_NNODES",
    "SLURM_PROCID",
)
OF_THIS_MACHINE = {"PATH": "/opt", "HOME": "/Users/x", "LC_CTYPE": "UTF-8", "LD_LIBRARY_PATH": "/opt/lib", "TMUX": "1"}


def test_the_ranks_have_their_own_and_other_hosts_theirs() -> None:
    whole = MINE | OF_THIS_MACHINE | dict.fromkeys(OF_A_RANK, "1") | {"LATIN": "\udce9", "JPY_SESSION_NAME": "a.ipynb"}
    whole["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # of our own
    assert passed_on(whole, to_other_hosts=False) == MINE | OF_THIS_MACHINE
    assert passed_on(whole, to_other_hosts=True) == MINE
