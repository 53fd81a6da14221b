"""Offline training of continuous control: Pendulum-v1 recorded with an expert of mixed quality, loaded, trained on."""
