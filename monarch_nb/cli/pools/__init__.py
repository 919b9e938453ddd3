"""`monarch-nb pool`: pools of hosts.

pool       who may use them, and which hosts they have
fairness   monarch-nb pool limits, usage: who may have how much of a pool, and who has had how much
users      monarch-nb pool users: whose account a person's name means on a computer that runs people as themselves
ssh_hosts  monarch-nb pool init --ssh: nodes on hosts that ssh reaches
"""
