"""Which nodes answer, which do not and why, and what those said last.

asked        who is waited for when all are asked, and who has answered twice
silence      why a node does not answer
last_heard   keeps what nodes said last, for a time when they do not answer
reach        whether nodes reach each other, and which one they do not
revocations  members that lost their rights: nodes are told
"""
