"""A Spark cluster of its own on this machine, from what pip installed: a master and workers in separate processes."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

import pyspark

from stentor.spark.java import java_home

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Programs that live for seconds are done sooner with a plain compiler and one thread of garbage collection."""

_START_S = 120.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker ")


class StandaloneSpark:
    """`with StandaloneSpark(folder) as spark:` and then `spark.url` is a master."""

    def __init__(self, folder, workers=2, hidden=None):
        self._folder = Path(folder)
        self._hidden = hidden  # a folder that workers do not share: each has its own there
        self._count = workers
        self._processes = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._launch("master", "org.apache.spark.deploy.master.Master")
            self.url = self._said("master", _MASTER)[0]
            for number in range(self._count):
                options = ["--cores", "1", "--memory", "600m", "--work-dir", str(self.work_folder(number))]
                self._launch(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options, self.url)
            self._said("master", _REGISTERED, self._count)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def work_folder(self, number):
        """Where a worker keeps what its executors wrote."""
        return self._folder / f"worker-{number}"

    def _launch(self, name, program, *arguments):
        home = Path(pyspark.__file__).parent
        logs = self._folder / "log4j2.properties"
        logs.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\nappender.console.target = SYSTEM_ERR\n"
            "appender.console.layout.type = PatternLayout\nappender.console.layout.pattern = %m%n\n"
        )
        environment = os.environ | {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dlog4j2.configurationFile={logs.as_uri()}",
        }
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [home / "bin" / "spark-class", program, *place, *arguments]
        if self._hidden is not None and name != "master":
            command = [
                "unshare",
                "--mount",
                "sh",
                "-c",
                'mount -t tmpfs none "$0" && exec "$@"',
                self._hidden,
                *command,
            ]
        with (self._folder / f"{name}.log").open("w") as log:
            started = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._processes.append(started)

    def _said(self, name, pattern, times=1):
        """What a process wrote to its log, once it has done so often enough."""
        pause, deadline = threading.Event(), time.monotonic() + _START_S
        while True:
            text = (self._folder / f"{name}.log").read_text(errors="replace")
            found = pattern.findall(text)
            if len(found) >= times:
                return found
            ended = [process for process in self._processes if process.poll() is not None]
            assert not ended, text
            assert time.monotonic() < deadline, text
            pause.wait(0.05)

    def stop(self):
        """Workers end their executors when they are told to end."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
