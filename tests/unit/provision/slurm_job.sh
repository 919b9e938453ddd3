#!/bin/bash
#SBATCH --job-name=monarch-nb-dev
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=480
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --output=/home/me/.config/monarch-nb/pools/slurm-dev/jobs/1/job.log
#SBATCH --open-mode=append

# It stays until srun has ended: Slurm then kills both, when their time is over.
told_to_end=
trap 'told_to_end=1' TERM
# An allocator per node. One that fails leaves the others alone.
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --export=ALL --no-kill --kill-on-bad-exit=0 --cpu-bind=none --gpus-per-node=8 --gpu-bind=none \
    bash -c 'node=$SLURMD_NODENAME from="$SLURM_SUBMIT_HOST $SLURM_LAUNCH_NODE_IPADDR"; unset SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_NPROCS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_TASKS_PER_NODE SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_GTIDS SLURM_TASK_PID ${!PMI*}; exec "$@" --node-id "$node" --toward $from' allocator \
    /home/me/env/bin/python -m monarch_nb.allocator --temporary 300s --pool slurm-dev --certificate /home/me/.config/monarch-nb/pools/slurm-dev/jobs/1/node.pem --gpus visible --publish /home/me/.config/monarch-nb/pools/slurm-dev/jobs/1/nodes &
step=$!
trap 'kill -USR1 $step' USR1
wait $step
while status=$?; [ $status -gt 128 ] && kill -0 $step 2> /dev/null; do wait $step; done
[ -z "$told_to_end" ] && [ $status -eq 0 ] &&
[ "$(grep -c '^srun: error: Node failure on ' /home/me/.config/monarch-nb/pools/slurm-dev/jobs/1/job.log)" -lt 2 ] &&  # else what has become of them is still to be told
{ rm -rf /home/me/.config/monarch-nb/pools/slurm-dev/jobs/1; if rmdir /home/me/.config/monarch-nb/pools/slurm-dev/jobs 2> /dev/null; then rm -rf /home/me/.config/monarch-nb/pools/slurm-dev; fi; }
