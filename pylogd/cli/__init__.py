"""The command line: a file for each subcommand of `pylogd`.

Begin with `main`, which has the table of subcommands. They share `commands` (groups, options, extras), `common`
(connections, times, sizes), `output` (results, messages, questions), `names` (of topics and groups), `moves` (of
replicas), `silent_brokers`, `service_options`, `schema_options`, `spark`, `stopping` and `waiting`.

It may import all of pylogd except the broker's parts; from the broker it takes how a process runs and how logs are
checked. `pylogd --help` imports no subcommand.
"""
