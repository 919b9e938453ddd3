#!/bin/bash
exec >> /home/me/.config/monarch-nb/pools/lsf-dev/jobs/1/job.log 2>&1

# An allocator per host. One that fails leaves the others alone.
on_host() {
    blaunch "$1" -no-shell \
        /home/me/env/bin/python -m monarch_nb.allocator --temporary 300s --pool lsf-dev --certificate /home/me/.config/monarch-nb/pools/lsf-dev/jobs/1/node.pem --gpus visible --publish /home/me/.config/monarch-nb/pools/lsf-dev/jobs/1/nodes \
        --node-id "$1" --toward "$LSB_SUB_HOST" ||
        { echo "the allocator of $1 has ended (exit code $?)"; false; }
}
set -- $LSB_MCPU_HOSTS  # host1 4 host2 4
started=()
while [ $# -gt 1 ] && [ ${#started[@]} -lt 2 ]; do
    on_host "$1" &
    started+=($!)
    shift 2
done
failed=0
for each in "${started[@]}"; do wait "$each" || failed=1; done
[ $failed = 0 ] && { rm -rf /home/me/.config/monarch-nb/pools/lsf-dev/jobs/1; if rmdir /home/me/.config/monarch-nb/pools/lsf-dev/jobs 2> /dev/null; then rm -rf /home/me/.config/monarch-nb/pools/lsf-dev; fi; }
