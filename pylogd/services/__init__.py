"""Services beside the brokers, each a command of its own: schema registry, mirror, audit and console.

They are clients of brokers, on Twisted. Begin with the module `service` of each. `registry` serves schemas, `mirror`
copies topics, `audit` verifies that all messages arrived, `console` shows clusters in a browser.

May import all wings but `broker`, `cli` and `local`.
"""
