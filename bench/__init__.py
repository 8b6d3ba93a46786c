"""The benchmark: the same verified work on Stentor, on its peers and on the limit of the machine.

Run ``python -m bench --quick`` (three minutes) or ``python -m bench``. How to read what it prints, and what
is and is not fair about it, is in ``bench/README.md``.

    __main__    the command line
    runner      interleaves the repetitions, keeps the samples, survives what fails
    model       Case, Spec, Sample, Row: what is run, what a process is told, what came out
    messages    the fixed messages and the checks that every consumer makes
    processes   starting, telling, and always stopping the processes
    role        the program inside each producer and consumer process
    measure     CPU, disk, percentiles, facts about the machine
    systems/    one file per system, one small interface
    works/      one file per kind of work
    report      the tables; ``verdict`` the targets; ``plots`` the pictures

    memory      broker memory while subscribers stand still     (python -m bench.memory)
    recovery    start after kill -9 with a big log              (python -m bench.recovery)
    crash       kill -9 while publishing, nothing lost          (python -m bench.crash)
    failover    how long publishing stands still when a broker fails, here and at NATS (python -m bench.failover)
"""
