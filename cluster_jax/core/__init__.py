"""Shared foundations: configs, checks, files, arrays, devices, schedules."""
