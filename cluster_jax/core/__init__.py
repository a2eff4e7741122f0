"""What every other package builds on: configs, checks, files, arrays, devices, schedules."""
