"""The console beside a very large recorded cluster, in headless Chromium, and beside Apache Kafka."""
