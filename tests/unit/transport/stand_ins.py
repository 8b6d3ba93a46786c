"""What stands in for sockets and owners of connections."""


class Transport:
    """Takes what is written; can be made to look slow."""

    def __init__(self):
        self.written = []
        self.closing = self.aborted = False
        self.reading = True

    def set_write_buffer_limits(self, high, low):
        assert 0 < low < high

    def get_write_buffer_size(self):
        return sum(map(len, self.written))

    def get_extra_info(self, name):
        return ("192.0.2.1", 4711)

    def write(self, buffer):
        self.written.append(bytes(buffer))

    def writelines(self, buffers):
        self.written += map(bytes, buffers)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True


class Owner:
    """Notes what it is told."""

    def __init__(self):
        self.frames = []
        self.refusals = []
        self.reads = 0
        self.writable = []
        self.lost = []
        self.on_frame = lambda *_: None

    def connected(self, connection):
        self.connection = connection

    def frame_received(self, kind, flags, correlation, body):
        self.frames.append((kind, flags, correlation, bytes(body)))
        self.on_frame(kind, body)

    def read_finished(self):
        self.reads += 1

    def writable_changed(self, writable):
        self.writable.append(writable)

    def refused(self, error):
        self.refusals.append(error)
        self.connection.abort()

    def disconnected(self, error):
        self.lost.append(error)


def feed(connection, data, sizes=()):
    """Hand bytes over as a socket would, in pieces of these sizes and then as they fit."""
    sizes = iter(sizes)
    position = 0
    while position < len(data) and not connection.closed:
        room = connection.get_buffer(-1)
        assert len(room) > 0
        step = min(len(room), next(sizes, len(data)), len(data) - position)
        room[:step] = data[position : position + step]
        connection.buffer_updated(step)
        position += step
