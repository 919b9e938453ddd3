"""Pods of a Kubernetes cluster: the launcher, what it asks for, and how it asks.

launcher   what every engine can do, for Kubernetes
manifests  what is asked for: a job whose pods run allocators, and what these need; manifests.yaml has its form
api        the API of a cluster, and what its refusals mean
pods       what the API says of jobs and pods, in words
"""
