"""The main job: agents of TF-Agents learn CartPole from each backend, online and from an RLDS dataset."""
