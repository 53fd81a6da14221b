"""Libraries that cannot share our environment, each in a process and an environment of its own.

`environments.py` says which and makes their environments, `processes.py` drives them, and the scripts `*_peer.py`
are what is driven, by the commands of `worker.py`.
"""
