"""Tries dragoman on the user's own machine, stage by stage: does it compute rightly there, and as fast as planned?"""
